"""A process that is connected to a leader, and what it reads. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Reader(NamedTuple):
    """`role`: of frames.Hello. `reads`: the highest format (formats.py)."""

    process: str
    role: str
    reads: int
