"""How a worker slows down where requests fail: it offers fewer slots while its engine refuses requests, and holds
errors back from tenants with one failure after another. Pure.
"""

from __future__ import annotations

from math import inf

HOLD_S = 1.0
"""For this time after a refusal no slot is added."""
FULL_S = 8.0
"""All slots are open this long after the last refusal. A heartbeat later the gate knows it: within 10 s."""
_LEAST = 1


class SlotLimit:
    """How many slots a worker offers while its engine refuses requests.

    Source: additive increase, multiplicative decrease (Chiu and Jain 1989), with one difference: the decrease is not to
    a fraction but to the number of requests that the engine has at the refusal, because these are what it takes.

        open(t) = lowest + (slots - lowest) (t - t0 - HOLD_S) / (FULL_S - HOLD_S), in whole slots, between lowest and
                  slots

    t0: the last refusal. Invariants: 1 <= open <= slots, because a worker without a slot would never learn that its
    engine takes requests again; open is slots from FULL_S after t0 on. `slots`: those of an engine that refuses
    nothing.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._lowest = slots
        self._refused_s = -inf

    def shrink(self, running: int, now_s: float) -> None:
        """Offer no more slots than `running`, the requests in the engine, and no more than now."""
        self._lowest = max(_LEAST, min(running, self.open(now_s)))
        self._refused_s = now_s

    def open(self, now_s: float) -> int:
        """Return the slots to offer now."""
        grown = (now_s - self._refused_s - HOLD_S) / (FULL_S - HOLD_S)
        if grown >= 1.0:
            return self.slots
        return self._lowest + int((self.slots - self._lowest) * max(0.0, grown))


FREE = 4
_FIRST_S = 0.05
HOLD_MAX_S = 1.0
"""Less than a front waits for the last event of a call that has ended (dispatcher/operations/calls/following.py)."""
FORGET_S = 10.0
TENANTS_MAX = 1024
"""Beyond this many tenants the one with the oldest failure is forgotten."""


class FailingTenants:
    """How long an error is held back from a tenant with one failure after another.

    A client that sends its request again at once after each error would otherwise keep the processors of front, gate
    and worker busy, however cheap each failure is, and delay the requests of others. The slot is free meanwhile, and
    the log has the end of the call: only the caller waits.

        hold(k) = 0 for the first FREE failures in a row, then _FIRST_S doubled with each, at most HOLD_MAX_S

    A request that succeeds ends the row, and so does FORGET_S without a failure.
    """

    def __init__(self) -> None:
        self._rows: dict[str, tuple[int, float]] = {}
        """Maps a tenant to the number of its failures in a row and the time of the last failure. The oldest failure is
        first."""

    def on_failure(self, tenant: str, now_s: float) -> None:
        count, at_s = self._rows.pop(tenant, (0, now_s))
        self._rows[tenant] = (1 if now_s - at_s >= FORGET_S else count + 1), now_s
        if len(self._rows) > TENANTS_MAX:
            del self._rows[next(iter(self._rows))]

    def __len__(self) -> int:
        return len(self._rows)

    def is_known(self, tenant: str) -> bool:
        """Return whether more than FREE requests of the tenant have failed in a row."""
        return self._rows.get(tenant, (0, 0.0))[0] > FREE

    def on_answer(self, tenant: str) -> None:
        self._rows.pop(tenant, None)

    def hold_s(self, tenant: str, now_s: float) -> float:
        """Return the seconds for which an error of the tenant is held back now."""
        count, at_s = self._rows.get(tenant, (0, now_s))
        if count <= FREE or now_s - at_s >= FORGET_S:
            return 0.0
        return float(min(HOLD_MAX_S, _FIRST_S * 2.0 ** min(count - FREE - 1, 16)))
