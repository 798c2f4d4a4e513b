"""Golden files: what this product writes and answers, byte for byte, before its house changes.

Each file in `files` is made by one function. The test makes it again and compares; `python -m tests.golden NAME…`
writes it anew, which only a change that is meant to change it may do. What makes a file may change with the code (a
command gets other fields); the file may not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

FILES = Path(__file__).with_name("files")

Maker = Callable[[], str]


def written(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")
