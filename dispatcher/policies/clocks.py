"""The two clocks of a tenant: a wall clock for its guarantee, a virtual clock for its part of the surplus.

Source: BWFQ (2025), section 3.1, in a form whose order can be kept in an index (orders/two_clocks.py has the moves).
The paper keeps two counters that grow for ever, credits earned and credits spent. Here each tenant has two numbers that
move only when one of its requests arrives, is dispatched or is settled, and never with time alone. So an index ordered
by them never goes stale:

- `tat` (wall clock, seconds): the theoretical arrival time of the generic cell rate algorithm (ITU-T I.371). A tenant
  is *in profile* while tat <= now. A dispatch in profile moves it to max(tat, now - burst / rate) + cost / rate: the
  paper's bucket, with the burst limit that the paper lacks.
- `vft` (virtual time, service per weight): the finish stamp of start-time fair queueing. It is for the gate what VTC's
  counter is for the worker. V is the pool's virtual time. When a request arrives and no other of its tenant waits, vft
  becomes clamp(vft, V, V + lead_max). A dispatch moves it to clamp(vft, V - lead_max, V + lead_max) + cost / weight.

A dispatch out of profile is surplus. It moves `vft` alone: a tenant that uses capacity which no guarantee claims
does not pay for it with its own guarantee later. A settlement moves `vft` always, and `tat` only if the dispatch moved
it. `vft` moves by (true - estimated) service / weight, `tat` by the same / rate, with the weight and the rate that were
*recorded at the dispatch*. So a change of a tenant's share never distorts the requests in flight.

Units: cost in service units (policies/service.py), rate in service units a second, burst in service units, weight
without dimension. Rate 0 means no guarantee: such a tenant is never in profile and lives on the surplus.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from dispatcher.policies.share_bounds import SCALE_MIN

LEAD_MAX = 50_000.0
"""Default bound on the distance between a tenant's vft and V, in service units for a weight of 1. A tenant that
received a large guarantee pays back at most this much when others return. A tenant that was charged too much gets at
most this much back. 50,000 is about half a minute of one busy GPU."""

_CAPACITY_SHARE = 0.9
"""The part of the measured capacity that guarantees may add up to before they are scaled."""


@dataclass(frozen=True, slots=True)
class Share:
    """A tenant's share: weight, guaranteed rate and burst. Raises ValueError unless weight > 0, rate and burst >= 0.

    A stored share may be outside the bounds of share_bounds.py, which are younger. It is clamped where it is used.
    """

    weight: float = 1.0
    rate_per_s: float = 0.0
    burst: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.weight < inf:
            raise ValueError(f"weight must be a positive number, not {self.weight!r}")
        if not 0 <= self.rate_per_s < inf:
            raise ValueError(f"rate_per_s must be zero or a positive number, not {self.rate_per_s!r}")
        if not 0 <= self.burst < inf:
            raise ValueError(f"burst must be zero or a positive number, not {self.burst!r}")


def rate_scale(promised_per_s: float, capacity_per_s: float | None) -> float:
    """Return the factor by which guaranteed rates are multiplied, SCALE_MIN <= factor <= 1.

    `promised_per_s`: the sum of the active tenants' guaranteed rates. Both parameters are in service units a second.
    The factor is 1 if nothing is promised, or if no capacity has been measured (None or no positive number). A tenth of
    the capacity is kept back for wrong estimates and the gaps between dispatches.
    """
    if promised_per_s <= 0 or not capacity_per_s or not capacity_per_s > 0:
        return 1.0
    return min(1.0, max(SCALE_MIN, _CAPACITY_SHARE * capacity_per_s / promised_per_s))
