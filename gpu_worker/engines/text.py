"""Generated text on its way out: whole characters only, and nothing that may yet turn out to be a stop string. Pure."""

from __future__ import annotations


class StopMatcher:
    """Cuts text at the first stop string, wherever pieces are split; holds back what could be the beginning of one."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """What may be sent now. After a stop string (`stopped`) nothing more ever is."""
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
        """What was held back, once it is certain that nothing follows."""
        sent, self._held = self._held, ""
        return sent

    def _possible_beginning(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stops):
                return size
        return 0
