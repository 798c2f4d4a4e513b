"""Entitlement: how much of the fleet's service each tenant can claim in the next seconds, and for which requests. Pure.

The planner counts lateness of entitled work before any other lateness. So a tenant that floods the service is late
through its own fault, whatever SLO its requests name. QLM (SoCC 2024) has no tenants; the rule is BWFQ's (policies/
clocks.py), applied to a horizon: guarantees first, then weights.

With capacity C = capacity_per_s x horizon_s and tenant i's demand d_i (backlog and forecast), weight w_i and guaranteed
rate r_i, all in service units:

    guaranteed   g_i = min(d_i, r_i horizon_s), if these add up to at most C; otherwise min(d_i, r_i horizon_s, λ r_i)
    entitled     e_i = min(d_i, max(g_i, λ w_i))

Each λ is the largest one for which the sum is at most C. The second line is weighted max-min with g_i as a floor. A
guarantee counts towards the share by weight, as a dispatch in profile moves vft too.

Invariants: Σ e_i = min(C, Σ d_i). If e_i < d_i, each tenant j with e_j / w_j > e_i / w_i has e_j = g_j. e_i does not
fall when r_i grows, and grows when another tenant's demand falls. e_i depends on the tenant's demand, not on the number
of its groups or their due times.

A deferred group (class batch) is no demand while its slack is enough: it is surplus, and uses what others leave.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, isfinite

from dispatcher.policies.clocks import Share

HORIZON_S = 60.0
_ROUNDING = 1e-6
"""The tolerance for rounding errors, in requests. 0.1 x 3 service units are three requests of 0.1, although the
quotient may be just below 3."""
_WEIGHT_RATIO_MIN = 1e-12
"""A weight counts as at least this part of the largest one, so that no λ is too large for a number."""


@dataclass(frozen=True, slots=True)
class GroupDemand:
    """A tenant's waiting requests that are planned together. Raises ValueError for an impossible number.

    `service`: expected for all its requests. `due_s`: from now to its due time, below 0 if it is late. `is_deferred`:
    it is of a deferred class. `needed_s`: swap time and P90 wait; a deferred group with less slack is urgent.
    """

    name: str
    requests: int
    service: float
    due_s: float
    is_deferred: bool = False
    needed_s: float = 0.0

    def __post_init__(self) -> None:
        if self.requests < 1:
            raise ValueError(f"group {self.name!r} has {self.requests} requests; it needs at least one")
        if not 0 <= self.service < inf:
            raise ValueError(f"group {self.name!r}: service must be zero or a positive number, not {self.service!r}")
        if not isfinite(self.due_s):
            raise ValueError(f"group {self.name!r} is due in {self.due_s!r} s; a finite time is needed")
        if not self.needed_s >= 0:
            raise ValueError(f"group {self.name!r}: needed_s must be zero or positive, not {self.needed_s!r}")

    @property
    def is_claimed(self) -> bool:
        return not self.is_deferred or self.due_s < self.needed_s


@dataclass(frozen=True, slots=True)
class TenantDemand:
    """What a tenant could use within the horizon. `forecast_service`: of arrivals to come (history.py).

    Raises ValueError if the forecast is negative or not finite, or two groups have the same name.
    """

    tenant: str
    share: Share
    groups: Sequence[GroupDemand]
    forecast_service: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.forecast_service < inf:
            raise ValueError(
                f"tenant {self.tenant!r} has a forecast of {self.forecast_service!r}; it must be 0 or more, and finite"
            )
        if len({group.name for group in self.groups}) < len(self.groups):
            raise ValueError(f"tenant {self.tenant!r} has two groups of one name")

    @property
    def service(self) -> float:
        return sum(group.service for group in self.groups if group.is_claimed) + self.forecast_service


@dataclass(frozen=True, slots=True)
class Entitlement:
    """`service`: e_i, in service units, of which `guaranteed` is g_i. `requests`: for each of the tenant's groups, in
    the order of their due times, how many requests from its head are entitled; the rest is surplus."""

    service: float
    guaranteed: float
    requests: dict[str, int]


def entitle(
    demands: Sequence[TenantDemand], capacity_per_s: float, horizon_s: float = HORIZON_S
) -> dict[str, Entitlement]:
    """Return each tenant's entitlement, in O(n log n) for n tenants.

    `capacity_per_s`: the fleet's service per second; with 0 nothing is entitled. Raises ValueError if it is negative,
    if the horizon is not positive, if either is not finite, or if two demands are of one tenant.
    """
    if not 0 <= capacity_per_s < inf or not 0 < horizon_s < inf:
        raise ValueError(f"a capacity of {capacity_per_s!r} per second over {horizon_s!r} s is impossible")
    names = {demand.tenant for demand in demands}
    if len(names) < len(demands):
        raise ValueError(f"{len(demands)} demands are of {len(names)} tenants; give one demand for each tenant")
    capacity, wanted = capacity_per_s * horizon_s, [demand.service for demand in demands]
    rates = [demand.share.rate_per_s for demand in demands]
    ceilings = [min(want, rate * horizon_s) for want, rate in zip(wanted, rates, strict=True)]
    floors = _fill([0.0] * len(demands), ceilings, rates, capacity)
    services = _fill(floors, wanted, [demand.share.weight for demand in demands], capacity)
    return {
        demand.tenant: Entitlement(service, guaranteed, _entitled_requests(demand.groups, service, guaranteed))
        for demand, service, guaranteed in zip(demands, services, floors, strict=True)
    }


def _fill(floors: list[float], ceilings: list[float], weights: list[float], amount: float) -> list[float]:
    """Return min(ceiling, max(floor, λ weight)) for each, with the largest λ for which they add up to `amount` at most.

    The sum is linear in λ between the values at which a term leaves its floor or reaches its ceiling. A binary search
    finds the two values around the solution. The slope between them is summed anew, not kept as a running difference,
    because weights may differ by many orders of magnitude.
    """
    if sum(ceilings) <= amount:
        return ceilings
    most = max(weights)
    scaled = (max(weight / most, _WEIGHT_RATIO_MIN) for weight in weights)
    terms = list(zip(floors, ceilings, scaled, strict=True))
    moving = [(low / weight, high / weight, weight) for low, high, weight in terms if low < high]
    ends = sorted({end for begin, stop, _ in moving for end in (begin, stop)})
    at = bisect_left(ends, amount, key=lambda level: sum(_amounts_at(terms, level)))
    if at == 0:  # the floors use up the amount
        return floors
    if at == len(ends):  # the ceilings exceed it by a rounding error
        return ceilings
    below, above = ends[at - 1], ends[at]
    slope = sum(weight for begin, stop, weight in moving if begin <= below and stop >= above)
    rest = amount - sum(_amounts_at(terms, below))
    return _amounts_at(terms, below + rest / slope if slope else below)  # without a slope, the rest is a rounding error


def _amounts_at(terms: list[tuple[float, float, float]], level: float) -> list[float]:
    return [min(high, max(low, level * weight)) for low, high, weight in terms]


def _entitled_requests(groups: Sequence[GroupDemand], service: float, guaranteed: float) -> dict[str, int]:
    """Give a tenant's service to its groups, the one that is due first before the others.

    The forecast gets what is left: those requests do not wait yet, and the next plan sees their due times. A request
    is entitled if it begins within the guaranteed service, as a request is in profile while tat <= now, or ends within
    the entitled service. Otherwise a guarantee that is lower than one request per horizon would entitle none.
    """
    entitled, begin = {}, 0.0
    for group in sorted(groups, key=lambda group: group.due_s):
        if not group.is_claimed:
            entitled[group.name] = 0
            continue
        each = group.service / group.requests
        entitled[group.name] = _count(service - begin, guaranteed - begin, each, group.requests)
        begin += group.service
    return entitled


def _count(service: float, guaranteed: float, each: float, requests: int) -> int:
    """Return how many requests of `each` service units are entitled, if so much is left for their group."""
    if each == 0 or service >= each * requests:
        return requests
    if service <= 0:
        return 0
    begun, ended = ceil(max(0.0, guaranteed) / each - _ROUNDING), floor(service / each + _ROUNDING)
    return min(requests, max(begun, ended))
