"""Splits the body of an answer into its events: server-sent events as WHATWG defines them, or JSON without them. Pure.

| the body has | what the reader does |
| --- | --- |
| LF, CR or CRLF, also split between two pieces | ends a line |
| a byte order mark at its beginning | skips it |
| `data:x`, `data: x`, several `data` lines | joins the lines of one event with LF |
| a second `data` line without an empty line between, and the first one is whole | takes it as the next event |
| comments, `id`, `retry`, unknown fields | ignores them |
| `event: error` | gives the event its name; faults.py reads it as an error |
| JSON at its beginning, whatever its media type says | takes the whole body as one event, or each of its lines |
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

LINE_BYTES_MAX = 4_000_000
WHOLE_BYTES_MAX = 64 * 1024 * 1024
"""The most bytes of an answer in one piece: embeddings, or the answer of a server that does not stream."""
BOM = b"\xef\xbb\xbf"
_ENDS = frozenset({b"[DONE]", b"[done]", b"[Done]", b"DONE"})


class Nonsense(ValueError):
    """What the server sent is no answer. The message is for the operator's log. It repeats nothing of the answer."""


class ServerEvent(NamedTuple):
    """`name`: of its `event` field, mostly empty."""

    data: bytes
    name: str = ""

    @property
    def is_done(self) -> bool:
        return self.data in _ENDS


class BodyReader:
    """Reads one body piece by piece. `bytes_max`: of a body of events, with comments."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._beginning = b""
        """What has arrived before it was clear whether the body is JSON."""
        self._is_json: bool | None = None
        self._parts: list[bytes] = []
        """The parts of the line that is not whole yet; for JSON, of the body."""
        self._parts_bytes = 0
        self._skips_lf = False
        self._data: list[bytes] = []
        self._name = ""

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """Yield the events that `piece` completes. Raises Nonsense beyond the bounds."""
        if self._is_json is None:
            piece = self._begin(piece)
        if not piece:
            return
        self._bytes += len(piece)
        if self._is_json:
            if self._bytes > WHOLE_BYTES_MAX:
                raise Nonsense(f"a body has more than {WHOLE_BYTES_MAX} bytes")
            self._parts.append(piece)
            return
        if self._bytes > self._bytes_max:
            raise Nonsense("the answer is far longer than its tokens can be")
        for line in self._lines(piece):
            event = self._line(line)
            if event is not None:
                yield event

    def end(self) -> Iterator[ServerEvent]:
        """Yield the events that the end of the body completes."""
        rest = b"".join(self._parts)
        if self._is_json:
            yield from _whole(rest)
            return
        for line in (rest, b""):
            event = self._line(line)
            if event is not None:
                yield event

    def _begin(self, piece: bytes) -> bytes:
        """Return what is left to read as soon as the kind of the body is known, else nothing."""
        self._beginning += piece
        found = self._beginning
        if BOM.startswith(found):  # a part of the mark, or all of it
            return b""
        found = found.removeprefix(BOM)
        text = found.lstrip()
        if not text:
            self._bytes += len(found)
            if self._bytes > self._bytes_max:
                raise Nonsense("the answer is far longer than its tokens can be")
            self._beginning = b""
            return b""
        self._is_json, self._beginning = text[:1] in (b"{", b"["), b""
        return text

    def _lines(self, piece: bytes) -> list[bytes]:
        """Return the lines that `piece` completes."""
        if self._skips_lf:
            self._skips_lf = False
            piece = piece.removeprefix(b"\n")
        if b"\r" in piece:
            self._skips_lf = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in piece:
            self._keep(piece)
            return []
        *lines, rest = piece.split(b"\n")
        if self._parts:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts.clear()
            self._parts_bytes = 0
        self._keep(rest)
        return lines

    def _keep(self, rest: bytes) -> None:
        if rest:
            self._parts.append(rest)
            self._parts_bytes += len(rest)
            if self._parts_bytes > LINE_BYTES_MAX:
                raise Nonsense(f"a line has more than {LINE_BYTES_MAX} bytes")

    def _line(self, line: bytes) -> ServerEvent | None:
        """Return the event that a line completes."""
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        if field == b"data":
            value = value.strip()
            if not self._data:
                self._data.append(value)
                return None
            whole = self._dispatch() if len(self._data) == 1 and _is_whole(self._data[0]) else None
            self._data.append(value)
            return whole
        if field == b"event":
            self._name = value.strip().decode("utf-8", "replace").lower()
        return None

    def _dispatch(self) -> ServerEvent | None:
        data, name = self._data, self._name
        self._name = ""
        if not data:
            return None
        whole = data[0] if len(data) == 1 else b"\n".join(data)
        data.clear()
        return ServerEvent(whole, name)


def _whole(body: bytes) -> Iterator[ServerEvent]:
    """Yield a body of JSON as one event, or its lines if each begins an object (NDJSON)."""
    lines = [line for each in body.splitlines() if (line := each.strip())] if b"\n{" in body else []
    if len(lines) > 1 and all(line[:1] == b"{" and _is_whole(line) for line in lines):
        yield from map(ServerEvent, lines)
    elif body:
        yield ServerEvent(body)


def _is_whole(data: bytes) -> bool:
    """Return whether the data is an event by itself, and not the first line of one."""
    if data in _ENDS:
        return True
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True
