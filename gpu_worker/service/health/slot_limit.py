"""How many slots a worker offers while its engine refuses requests. Pure.

Source: additive increase, multiplicative decrease (Chiu and Jain 1989), with one difference: the decrease is not to a
fraction but to the number of requests that the engine has at the refusal, because these are what it takes.

    open(t) = lowest + (slots - lowest) (t - t0 - HOLD_S) / (FULL_S - HOLD_S), in whole slots, between lowest and slots

t0: the last refusal. Invariants: 1 <= open <= slots, because a worker without a slot would never learn that its engine
takes requests again; open is slots from FULL_S after t0 on.
"""

from __future__ import annotations

from math import inf

HOLD_S = 1.0
"""For this time after a refusal no slot is added."""
FULL_S = 8.0
"""All slots are open this long after the last refusal. A heartbeat later the gate knows it: within 10 s."""
LEAST = 1


class SlotLimit:
    """`slots`: those of an engine that refuses nothing."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._lowest = slots
        self._refused_s = -inf

    def shrink(self, running: int, now_s: float) -> None:
        """Offer no more slots than `running`, the requests in the engine, and no more than now."""
        self._lowest = max(LEAST, min(running, self.open(now_s)))
        self._refused_s = now_s

    def open(self, now_s: float) -> int:
        """Return the slots to offer now."""
        grown = (now_s - self._refused_s - HOLD_S) / (FULL_S - HOLD_S)
        if grown >= 1.0:
            return self.slots
        return self._lowest + int((self.slots - self._lowest) * max(0.0, grown))
