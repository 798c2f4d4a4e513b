"""Generated text on its way to the caller: whole characters only, cut at the first stop string. Pure."""

from __future__ import annotations

from collections.abc import Callable


class StopMatcher:
    """Cuts text at the first stop string, however the text is split into pieces. Holds back text that may be the
    beginning of a stop string."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """Return the text that can be sent now. After a stop string (`stopped`) there is none any more."""
        if self.stopped:
            return ""
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped = True
            sent, self._held = self._held[: min(found)], ""
            return sent
        keep = self._possible_beginning()
        sent, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return sent

    def flush(self) -> str:
        """Return the text held back; call it when no text follows."""
        sent, self._held = self._held, ""
        return sent

    def _possible_beginning(self) -> int:
        """Return the length of the longest suffix of the text that begins a stop string."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stops):
                return size
        return 0


class Detokenizer:
    """Turns tokens into text. A character of several tokens is held back until it is complete.

    `decode` turns token ids into text and writes U+FFFD for bytes that are not a complete character. Two windows of the
    last tokens are decoded, so the cost of a token does not grow with the text, and a tokenizer that treats the first
    token of a text specially (it strips a space) sees the same beginning in both.
    """

    PENDING_MAX = 8
    """Tokens held back at most. No character has more bytes; longer sequences are invalid and are passed on."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._sent = 0

    def feed(self, token: int) -> str:
        self._tokens.append(token)
        text = self._pending()
        if text.endswith("\ufffd") and len(self._tokens) - self._sent < self.PENDING_MAX:
            return ""
        self._tokens = self._tokens[self._sent :]
        self._sent = len(self._tokens)
        return text

    def flush(self) -> str:
        """Return the rest of the text; an incomplete character becomes U+FFFD."""
        text = self._pending()
        self._sent = len(self._tokens)
        return text

    def _pending(self) -> str:
        return self._decode(self._tokens)[len(self._decode(self._tokens[: self._sent])) :]
