"""What the planner plans: the pieces of the tenants' groups, and which of them are entitled. Pure.

1. Groups that no worker fits are left out. The others are split into pieces of δ batches, δ = 4 (groups.py), with a
   larger δ if the pieces would be more than a plan holds.
2. Each tenant is entitled to a part of the fleet's service in the next 60 s (entitlement.py). The fleet's service is
   the sum over workers of the mean rate of the waiting models that fit. A model that fits few workers can therefore
   have more entitled work than they can do; it is late then.
3. A piece of a deferred class has slack until it must begin, so that it and the later ones are served in time at the
   tenant's own rate. Before that it claims nothing.
4. A piece that is entitled in part becomes two.
5. Lateness weighs less for a tenant that wants more than its entitlement: its work goes after that of tenants within
   theirs. It still gets what it is entitled to in the horizon, as those want no more than theirs. It weighs more the
   longer a piece is overdue: otherwise, of two tenants with endless backlogs, one could wait for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import NamedTuple

from dispatcher.policies.clocks import Share
from dispatcher.policies.planning.begun import NONE, Begun
from dispatcher.policies.planning.entitlement import Entitlement, GroupDemand, TenantDemand, entitle
from dispatcher.policies.planning.fleet import DRAIN_S, FleetWorker, ServiceRates, residency_s
from dispatcher.policies.planning.groups import DELTA, GroupFigures, GroupKey, split
from dispatcher.policies.planning.history import Expected
from dispatcher.policies.planning.slo import SloClasses

_P90_FACTOR = 1.3
"""The 0.9 quantile of a wait over its expected value: 1.1 to 1.5 in measured runs."""

_BEYOND_SHARE = 1e-3
"""The weight of lateness of a tenant that wants more than its entitlement."""
_OVERDUE_S = 60.0
"""Work that is overdue for so long weighs twice as much; at most that of _OVERDUE_MAX_S counts."""
_OVERDUE_MAX_S = 3600.0
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class TenantBacklog:
    """What waits for a tenant. `forecast_service`: service units that are expected to arrive within the horizon of
    60 s, by model, without deferred classes (history.py). `expected`: these arrivals, one by one. `begun`: what began
    lately.

    Raises ValueError if a forecast is negative or not finite.
    """

    tenant: str
    share: Share
    groups: Sequence[GroupFigures]
    forecast_service: Mapping[str, float] = field(default_factory=dict)
    expected: Mapping[str, Expected] = field(default_factory=dict)
    begun: Begun = NONE

    def __post_init__(self) -> None:
        if not all(0 <= each < inf for each in self.forecast_service.values()):
            raise ValueError(f"tenant {self.tenant!r} has a forecast that is negative or not finite")


class Piece(NamedTuple):
    """Requests of one group that are planned together. `has_slack`: of a deferred class, and may wait. `weight`: the
    cost of a second of a request's lateness, beside pieces that are equally entitled."""

    tenant: str
    key: GroupKey
    requests: int
    service: float
    due_at: float
    is_entitled: bool
    has_slack: bool
    weight: float


class Claims(NamedTuple):
    """`pieces`: entitled ones first, then those that are due first. `left_out`: requests that no worker fits, or that
    are more than a plan holds; `entitled_left_out`: the entitled ones among the latter. `expected_parts`: by tenant,
    the entitled part of its forecast."""

    pieces: list[Piece]
    left_out: int
    entitled_left_out: int
    expected_parts: dict[str, float]


def claims(
    backlogs: Sequence[TenantBacklog],
    workers: Sequence[FleetWorker],
    rates: ServiceRates,
    now: float,
    classes: SloClasses,
    pieces_max: int,
    capacity_per_s: float | None = None,
) -> Claims:
    """Return the pieces to plan, at most `pieces_max`. `capacity_per_s`: the service of which tenants are entitled to
    parts; None for that of the workers. Raises ValueError for an unknown class or a repeated tenant."""
    models = {group.key.model for backlog in backlogs for group in backlog.groups}
    models |= {model for backlog in backlogs for model in backlog.forecast_service}
    slots = {model: min(each.slots for each in able) for model in models if (able := _able(workers, model))}
    fitting = [[group for group in backlog.groups if group.key.model in slots] for backlog in backlogs]
    delta = _delta([group for groups in fitting for group in groups], slots, pieces_max)
    fleet_per_s = fleet_capacity_per_s(workers, slots, rates)
    weights = sum(backlog.share.weight for backlog in backlogs)
    delay_s = {model: _delay_s(workers, model) for model in slots}
    parts, demands = [], []
    for backlog, groups in zip(backlogs, fitting, strict=True):
        split_groups = [piece for group in groups for piece in split(group, slots[group.key.model], delta)]
        own_per_s = max(backlog.share.rate_per_s, fleet_per_s * backlog.share.weight / weights)
        parts.append(split_groups)
        demands.append(_demand(backlog, split_groups, delay_s, own_per_s, now, classes))
    entitled = entitle(demands, fleet_per_s if capacity_per_s is None else capacity_per_s)
    pieces: list[Piece] = []
    parts_expected: dict[str, float] = {}
    for backlog, demand, split_groups in zip(backlogs, demands, parts, strict=True):
        found = list(_pieces(backlog.tenant, demand, split_groups, entitled[backlog.tenant]))
        pieces += found
        parts_expected[backlog.tenant] = _expected_part(found, demand, entitled[backlog.tenant])
    pieces.sort(key=lambda piece: (piece.has_slack, not piece.is_entitled, piece.due_at))
    waiting = sum(group.requests for backlog in backlogs for group in backlog.groups)
    kept, cut = pieces[:pieces_max], pieces[pieces_max:]
    left_out = waiting - sum(piece.requests for piece in kept)
    return Claims(kept, left_out, sum(piece.requests for piece in cut if piece.is_entitled), parts_expected)


def fleet_capacity_per_s(workers: Sequence[FleetWorker], models: Iterable[str], rates: ServiceRates) -> float:
    """Return the sum over workers of the mean rate of those of the models that fit."""
    names = sorted(models)
    return sum(_rate_per_s(worker, names, rates) for worker in workers)


def _delta(groups: Sequence[GroupFigures], slots: Mapping[str, int], pieces_max: int) -> int:
    """Return the first of δ, 2 δ, 4 δ … with at most `pieces_max` pieces, or with one piece for each group."""
    delta = DELTA
    largest = max((group.requests for group in groups), default=0)
    while (
        delta < largest and sum(ceil(each.requests / (slots[each.key.model] * delta)) for each in groups) > pieces_max
    ):
        delta *= 2
    return delta


def _demand(
    backlog: TenantBacklog,
    pieces: Sequence[GroupFigures],
    delay_s: Mapping[str, float],
    own_per_s: float,
    now: float,
    classes: SloClasses,
) -> TenantDemand:
    """Return the tenant's demand, with the number of each piece as its name. `delay_s`: of each model that fits."""
    deferred = {each: classes.named(each).is_deferred for each in {piece.key.slo_class for piece in pieces}}
    begin_s = _latest_begins_s([piece for piece in pieces if deferred[piece.key.slo_class]], own_per_s, now)
    groups = []
    for number, piece in enumerate(pieces):
        due_s, needed_s = piece.due_at - now, 0.0
        if deferred[piece.key.slo_class]:
            needed_s = delay_s[piece.key.model] + due_s - begin_s[id(piece)]
        service = piece.expected_service
        groups.append(GroupDemand(str(number), piece.requests, service, due_s, deferred[piece.key.slo_class], needed_s))
    forecast = sum(service for model, service in backlog.forecast_service.items() if model in delay_s)
    return TenantDemand(backlog.tenant, backlog.share, groups, forecast)


def _latest_begins_s(pieces: Sequence[GroupFigures], per_s: float, now: float) -> dict[int, float]:
    """Return, by id(), when each piece must begin, in seconds from now, if the tenant is served at this rate."""
    begins, following_s = {}, inf
    for piece in sorted(pieces, key=lambda each: each.due_at, reverse=True):
        following_s = min(piece.due_at - now, following_s) - _P90_FACTOR * piece.expected_service / per_s
        begins[id(piece)] = following_s
    return begins


def _pieces(
    tenant: str, demand: TenantDemand, pieces: Sequence[GroupFigures], entitled: Entitlement
) -> Iterator[Piece]:
    within = 1.0 if entitled.service >= demand.service * (1 - _ROUNDING) else _BEYOND_SHARE
    for claim, piece in zip(demand.groups, pieces, strict=True):
        weight = within * (1.0 + min(_OVERDUE_MAX_S, max(0.0, -claim.due_s)) / _OVERDUE_S)
        count = entitled.requests[claim.name]
        each = piece.expected_service / piece.requests
        if count:
            yield Piece(tenant, piece.key, count, count * each, piece.due_at, True, False, weight)
        if count < piece.requests:
            rest = piece.requests - count
            yield Piece(tenant, piece.key, rest, rest * each, piece.due_at, False, not claim.is_claimed, weight)


def _expected_part(pieces: Iterable[Piece], demand: TenantDemand, entitled: Entitlement) -> float:
    """Return the entitled part of the tenant's forecast, which gets what the pieces leave."""
    left = entitled.service - sum(piece.service for piece in pieces if piece.is_entitled)
    return min(1.0, max(0.0, left) / demand.forecast_service) if demand.forecast_service > 0 else 0.0


def _able(workers: Sequence[FleetWorker], model: str) -> list[FleetWorker]:
    return [worker for worker in workers if worker.fits(model)]


def _rate_per_s(worker: FleetWorker, models: Sequence[str], rates: ServiceRates) -> float:
    """Return the mean rate over those of the models that fit the worker."""
    found = [rates.per_s(worker.kind, model) for model in models if worker.fits(model)]
    return sum(found) / len(found) if found else 0.0


def _delay_s(workers: Sequence[FleetWorker], model: str) -> float:
    """Return the time to get the model loaded: residency, drain and swap; 0 if it is loaded."""
    swap_s = min(worker.swap_to_s(model) for worker in workers)
    return residency_s(swap_s, True) + DRAIN_S + swap_s if swap_s > 0 else 0.0
