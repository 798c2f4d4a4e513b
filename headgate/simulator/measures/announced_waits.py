"""How often the waits that a gate announced covered the waits that followed.

A request is queued if it does not get a slot in the decision of its arrival. Its wait ends with its first dispatch.

Some waits are known exactly, such as the rest of a swap, so that they end just when announced. Below the median are
then all of them or none. So a wait that equals the announced P50, to the millisecond of the header that announces it,
counts as half within it (the mid-distribution function of a discrete distribution; Parzen, JASA 99, 2004).
"""

from __future__ import annotations

from dataclasses import dataclass

LONG_S = 1.0
EXACT_S = 0.001


@dataclass(slots=True)
class WaitCoverage:
    """Numbers of queued requests that were dispatched. `announced`: with a P50 and a P90. `long`: that waited longer
    than LONG_S. `within_p50`, `within_p90`: that waited no longer than announced. `exact`: that waited as long as
    the announced P50; half of these count in `within_p50`."""

    queued: int = 0
    announced: int = 0
    long: int = 0
    long_announced: int = 0
    within_p50: float = 0.0
    within_p90: int = 0
    exact: int = 0

    def note(self, p50_s: float | None, p90_s: float | None, waited_s: float) -> None:
        """Count one queued request. None: it got no estimate."""
        self.queued += 1
        self.long += waited_s > LONG_S
        if p50_s is not None and p90_s is not None:
            self.announced += 1
            self.long_announced += waited_s > LONG_S
            is_exact = abs(waited_s - p50_s) <= EXACT_S
            self.exact += is_exact
            self.within_p50 += 0.5 if is_exact else waited_s < p50_s
            self.within_p90 += waited_s <= p90_s + EXACT_S

    def add(self, other: WaitCoverage) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def announced_part(self) -> float:
        return self.announced / max(1, self.queued)

    @property
    def long_announced_part(self) -> float:
        return self.long_announced / max(1, self.long)

    @property
    def p50(self) -> float:
        """The part of the announced waits that P50 covers; 0 without any."""
        return self.within_p50 / max(1, self.announced)

    @property
    def p90(self) -> float:
        """The part of the announced waits that P90 covers; 0 without any."""
        return self.within_p90 / max(1, self.announced)
