"""Encodes the records of the outbox's file: a command with a number, or the number of an acknowledged command. Pure.

One record is one line, `crc32 json`. A damaged record is skipped and counted. A last line without a line feed is an
unfinished write, and is ignored.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any

from dispatcher.model.commands import End, Return

AttemptReport = End | Return
KINDS: dict[str, type[End] | type[Return]] = {"End": End, "Return": Return}


def command_record(number: int, command: AttemptReport) -> bytes:
    return _record({"put": number, "kind": type(command).__name__, **command._asdict()})


def acknowledged_record(number: int) -> bytes:
    return _record({"done": number})


def unacknowledged(raw: bytes) -> tuple[list[AttemptReport], int]:
    """Return the commands that are not acknowledged, oldest first, and the number of damaged records."""
    pending: dict[int, AttemptReport] = {}
    damaged = 0
    for fields in _records(raw):
        try:
            if "done" in fields:
                pending.pop(fields["done"], None)
            else:
                pending[fields["put"]] = _command(fields)
        except (KeyError, TypeError):
            damaged += 1
    return list(pending.values()), damaged


def _record(fields: dict[str, Any]) -> bytes:
    raw = json.dumps(fields, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(raw), raw)


def _records(raw: bytes) -> Iterator[dict[str, Any]]:
    """Yield each record's fields, and an empty dict for a damaged record."""
    *lines, _ = raw.split(b"\n")
    for line in lines:
        crc, _, text = line.partition(b" ")
        try:
            fields = json.loads(text) if int(crc, 16) == zlib.crc32(text) else {}
        except ValueError:
            fields = {}
        yield fields if isinstance(fields, dict) else {}


def _command(fields: dict[str, Any]) -> AttemptReport:
    """Return the recorded command. Fields of a newer version are ignored. Raises KeyError, TypeError."""
    kind = KINDS[fields["kind"]]
    return kind(**{name: fields[name] for name in kind._fields if name in fields})
