"""Counts, for each tenant, the requests that began lately, and those of them that began late. Pure and bounded.

A plan looks a minute or so ahead. If it looked at nothing else, the same tenant could be the worst-off in each plan:
one of few requests, for which it never pays to swap. So a plan adds what has begun late to what it plays forward
(choice.py). Counts fade with a time constant of 15 minutes.

A request that leaves its queue without a slot is not counted.
"""

from __future__ import annotations

from math import exp
from typing import NamedTuple

_TIME_CONSTANT_S = 900.0
TENANTS_MAX = 1_000
"""The tenants that began something last are remembered."""


class Begun(NamedTuple):
    """Requests that got their first slot, and those of them that were late, both faded."""

    requests: float = 0.0
    late: float = 0.0


NONE = Begun()


class BegunRecord:
    """The counts by tenant. Times are Unix seconds."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[Begun, float]] = {}
        """These are the counts with their times, the oldest first."""

    def on_started(self, tenant: str, due_at: float, now: float) -> None:
        """Count a request that gets its first slot."""
        requests, late = self.of(tenant, now)
        self._counts.pop(tenant, None)
        self._counts[tenant] = Begun(requests + 1.0, late + (now > due_at)), now
        if len(self._counts) > TENANTS_MAX:
            del self._counts[next(iter(self._counts))]

    def of(self, tenant: str, now: float) -> Begun:
        counts, at = self._counts.get(tenant, (NONE, now))
        kept = exp(min(0.0, at - now) / _TIME_CONSTANT_S)
        return Begun(counts.requests * kept, counts.late * kept)
