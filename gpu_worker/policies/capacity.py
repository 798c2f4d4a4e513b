"""What a worker can do: service a second, measured while it was full."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WINDOW_S = 30.0


@dataclass(eq=False)
class Capacity:
    """Pure: told at each heartbeat what had been served by then."""

    window_s: float = WINDOW_S
    known: float = 0.0
    """Service units a second; 0 while it was never full."""
    _served: deque[tuple[float, float, bool]] = field(default_factory=deque)

    def note(self, now: float, served: float, *, full: bool) -> float:
        """`served`: since the engine started (service units). `full`: requests are waiting. Returns what is known now.

        Only stretches at whose both ends it was full count, and the best of the window: a stretch may have been idle in
        between.
        """
        self._served.append((now, served, full))
        while now - self._served[0][0] > self.window_s:
            self._served.popleft()
        rates = [
            (after - before) / (end - start)
            for (start, before, was_full), (end, after, is_full) in zip(
                self._served, list(self._served)[1:], strict=False
            )
            if was_full and is_full and end > start
        ]
        self.known = max(rates) if rates else self.known
        return self.known
