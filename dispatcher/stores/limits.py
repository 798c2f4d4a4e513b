"""The limits of every backend: sizes in bytes, times in seconds."""

from __future__ import annotations

import re

from dispatcher.model.errors import EntryTooLarge, LogGap

ENTRY_BYTES_MAX = 380_000
"""The longest entry of a log. An item of DynamoDB, with its keys, may have 400 KB."""
TEXT_BYTES_MAX = 350_000
"""The longest body or answer of an invocation. An item never has both."""
CUT_AFTER_S = 24 * 3600.0
"""Entries and snapshots below a cut are kept at least this long after they were written, so that a read that began
before the cut still finds them."""
INVOCATION_KEEP_S = 24 * 3600.0
"""For this time after its deadline, an invocation can be read and its key is in use."""
MAILBOX_KEEP_S = 3600.0
"""News is kept for this time. That is enough, because a call's deadline is at most 900 s after its arrival."""
USAGE_KEEP_S = 400 * 24 * 3600.0
"""The usage of an hour can be read for this time."""
TENANT_ROW_KEEP_S = 7 * 24 * 3600.0
"""The state of a tenant that is not active any more can be read for this time."""

_SHARD = re.compile(r"[A-Za-z0-9._-]{1,64}")


def checked_shard(shard: str) -> str:
    """Return the name. Raises ValueError."""
    if not _SHARD.fullmatch(shard):
        raise ValueError(f"a shard's name has 1 to 64 characters of A-Za-z0-9._-, not {shard!r}")
    return shard


def checked_entry(position: int, entry: bytes) -> bytes:
    """Return the entry. Raises EntryTooLarge."""
    if len(entry) > ENTRY_BYTES_MAX:
        limit = f"at most {ENTRY_BYTES_MAX} are kept"
        raise EntryTooLarge(f"Entry {position} has {len(entry)} bytes; {limit}. Write fewer commands at once.")
    return entry


def gap_at(shard: str, position: int) -> LogGap:
    return LogGap(f"The log of {shard} has no entry {position}, but a later one: begin at a snapshot above it.")
