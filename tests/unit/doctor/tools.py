"""Commands that a test puts into PATH, as Node and Docker of the machine that deploys."""

from __future__ import annotations

from pathlib import Path


def command(path: Path, name: str, lines: str) -> None:
    file = path / name
    file.write_text(f"#!/bin/sh\n{lines}\n")
    file.chmod(0o755)


def engine(path: Path, version: str, platforms: str = "", name: str = "docker") -> None:
    command(path, name, f'if [ "$1" = version ]; then echo "{version}"; else echo "Platforms: {platforms}"; fi')
