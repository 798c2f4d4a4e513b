"""The formats of what processes write for each other: entries of the log, snapshots and frames, under one number. Pure.

Two versions of the code serve together while one replaces the other, and while it is taken back. So each version reads
the format before its own, and a log is written in the older format until an operator confirms that every process reads
the newer one (`headgate formats`). On a connection each side says what it reads, so frames need no confirmation.

From format 6 on a reader ignores what it does not know where that is harmless: further fields at the end of a fact, of
a message, of a row or of an entry's head, and facts with a letter that begins with SKIPPABLE. So a later version that
adds only these needs no new format. What an older process must not miss needs one.

Format 2 added UsageSaved, 3 ProcessSet for the calls that no process holds, 4 a worker's capabilities, 5 SLO classes
and the models that a worker can load, 6 cached input tokens of ends, the log's own format, the rules above, and that
idle tenants are forgotten a few with each entry.
"""

from __future__ import annotations

from typing import NamedTuple

OLDEST = 5
"""What a process reads that announces nothing. It is also the format of a log whose first fact names none."""
NEWEST = 6
"""The highest format that this code reads. A log that this code begins has it."""
SKIPPABLE = "?"


class Reader(NamedTuple):
    """A process that is connected to a leader. `role`: of frames.Hello. `reads`: the highest format that it reads."""

    process: str
    role: str
    reads: int
