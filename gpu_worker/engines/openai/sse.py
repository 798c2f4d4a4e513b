"""Server-sent events as OpenAI's servers send them: one JSON object in each `data:` line. Pure."""

from __future__ import annotations

from collections.abc import Iterator

LINE_BYTES_MAX = 1_000_000
DONE = b"[DONE]"


class Nonsense(ValueError):
    """What the server sent is no answer. The message is for the operator's log. It repeats nothing of the answer."""


class DataLines:
    """Splits a body into the data of its events. Other lines (comments, `event:`, empty ones) are dropped.

    A data line is an event of its own, also without an empty line after it: no server here sends JSON on two lines, and
    some send no empty line. `bytes_max`: of the whole body, with comments.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_left = bytes_max
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the data of the lines that `piece` completes. Raises Nonsense beyond the bounds."""
        self._bytes_left -= len(piece)
        if self._bytes_left < 0:
            raise Nonsense("the answer is far longer than its tokens can be")
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            raise Nonsense(f"a line has more than {LINE_BYTES_MAX} bytes")
        for line in lines:
            yield from _data(line)

    def end(self) -> Iterator[bytes]:
        """Yield the data of the last line if it has no line feed."""
        yield from _data(self._rest)


def _data(line: bytes) -> Iterator[bytes]:
    if line.startswith(b"data:"):
        yield line[5:].strip()
