"""Counts what the layer had to guess or leave out, and logs each kind once."""

from __future__ import annotations

import logging
from collections import Counter

logger = logging.getLogger("headgate.engine")

KINDS_MAX = 100
"""A server can send any number of unknown words; more kinds are counted as one."""
WORD_CHARS_MAX = 40


class Oddities:
    """Counts the oddities of one server. `counts`: their numbers by what was done and the server's own word for it."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def note(self, done: str, word: str) -> None:
        """Count that the layer did `done` because of the server's `word`. Log it the first time."""
        shown = word[:WORD_CHARS_MAX]
        kind = (done, shown)
        if kind not in self.counts and len(self.counts) >= KINDS_MAX:
            kind = (done, "…")
        self.counts[kind] += 1
        if self.counts[kind] == 1:
            logger.warning("%s: %r (logged once)", done, kind[1])
