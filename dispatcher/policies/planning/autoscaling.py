"""How many workers the entitled work needs: a signal for autoscaling. Pure.

The smallest number of workers at which no entitled work is late, found by doubling and bisection with make_plan: the
plan of that number has no late entitled work, and that of one worker less has. A plan is a heuristic, so a smaller
number can suffice.

- Entitled is what the largest fleet would entitle each tenant to. With the shares of the present fleet, any overload
  would be beyond the shares, and ask for no workers. So the largest fleet is the budget: a flood asks for all of it,
  and often for more than that.
- Forecast arrivals count as work that is due at the end of the horizon.
- Work that is late even with the largest fleet, such as overdue work, cannot be saved by workers. It counts as new work
  of its class, so that a backlog asks for workers although it is late.
- Deferred work with slack, and work beyond a tenant's share of the largest fleet, ask for none beyond the first.

QLM (SoCC 2024, section 9) adds workers if its program has no solution, and does not say how many. Chiron, by the same
authors, lets waiting times decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from math import ceil

from dispatcher.policies.planning.claims import TenantBacklog, fleet_capacity_per_s
from dispatcher.policies.planning.entitlement import HORIZON_S
from dispatcher.policies.planning.fleet import FleetWorker, ServiceRates
from dispatcher.policies.planning.groups import GroupFigures, GroupKey
from dispatcher.policies.planning.plan import MOVES, SETTINGS, Plan, PlanSettings, make_plan
from dispatcher.policies.planning.slo import SloClasses

_FORECAST_REQUEST_SERVICE = 500.0
"""The service of a request of a forecast: it says only how finely the work can be divided among workers."""
_FORECAST_REQUESTS_MAX = 10_000
_LATE_MIN_S = 1e-6
"""Request seconds below this are a rounding error."""


@dataclass(frozen=True, slots=True)
class WorkersNeeded:
    """`workers`: None if no number up to the bound suffices; then `reason` says why. Otherwise `reason` is empty.

    `unsaved`: entitled requests that are late however many workers there are, and count as new.
    """

    workers: int | None
    reason: str = ""
    unsaved: int = 0


def workers_needed(
    backlogs: Sequence[TenantBacklog],
    workers: Sequence[FleetWorker],
    further: Sequence[FleetWorker],
    now: float,
    *,
    workers_max: int,
    moves: int = MOVES,
    settings: PlanSettings = SETTINGS,
) -> WorkersNeeded:
    """Return the number of workers. Without work and forecast it is 0.

    `workers`: the fleet; a smaller one has the first of them. `further`: a worker of each kind that can be added, in
    turn; their names are not used. Without any, the fleet only shrinks. Raises what make_plan raises.
    """
    work = [_with_forecast(backlog, now, settings.classes) for backlog in backlogs]
    models = {group.key.model for backlog in work for group in backlog.groups}
    if not models:
        return WorkersNeeded(0)
    largest = _fleet(workers, further, workers_max)
    misfits = sorted(model for model in models if not any(worker.fits(model) for worker in largest))
    if misfits:
        return WorkersNeeded(None, f"no worker fits {', '.join(misfits[:5])}; add a kind of worker that does")
    rates = ServiceRates(largest, models)
    if not rates.are_known:
        return WorkersNeeded(None, "no worker's throughput is measured yet")
    capacity_per_s = fleet_capacity_per_s(largest, models, rates)
    wide = replace(settings, pieces_per_worker_max=settings.pieces_max, capacity_per_s=capacity_per_s)

    def planned(count: int) -> Plan:
        return make_plan(work, largest[:count], now, moves=moves, settings=wide)

    def suffices(count: int) -> bool:
        fits = all(any(worker.fits(model) for worker in largest[:count]) for model in models)
        return fits and _is_in_time(planned(count))

    best = planned(len(largest))
    unsaved = _late_requests(best)
    if unsaved:
        work = _counted_as_new(work, best, now, settings.classes)
        best = planned(len(largest))
    if not _is_in_time(best):
        return WorkersNeeded(None, _reason(best, len(largest)), unsaved)
    return WorkersNeeded(_smallest(len(largest), suffices), "", unsaved)


def _smallest(most: int, suffices: Callable[[int], bool]) -> int:
    """Return a number that suffices, while one less does not. `most` suffices, and 0 does not."""
    above = 1
    while above < most and not suffices(above):
        above = min(most, 2 * above)
    below = above // 2 if above < most else _last_doubling(most)
    while above - below > 1:
        middle = (above + below) // 2
        above, below = (middle, below) if suffices(middle) else (above, middle)
    return above


def _last_doubling(most: int) -> int:
    """Return the largest power of 2 below `most`: doubling tried it last. 0 if `most` is 1."""
    return 1 << (most - 1).bit_length() - 1 if most > 1 else 0


def _fleet(workers: Sequence[FleetWorker], further: Sequence[FleetWorker], count: int) -> list[FleetWorker]:
    added = islice(cycle(further), max(0, count - len(workers)))
    names = {worker.name for worker in workers}
    prefix = "+" * (1 + max((len(name) for name in names), default=0))
    return [*workers[:count], *(replace(each, name=f"{prefix}{number}") for number, each in enumerate(added))]


def _with_forecast(backlog: TenantBacklog, now: float, classes: SloClasses) -> TenantBacklog:
    """Return the backlog with its forecast as groups that are due at the end of the horizon."""
    found = (
        _forecast_group(model, service, now, classes)
        for model, service in sorted(backlog.forecast_service.items())
        if service > 0
    )
    return replace(backlog, groups=[*backlog.groups, *found], forecast_service={})


def _forecast_group(model: str, service: float, now: float, classes: SloClasses) -> GroupFigures:
    requests = min(_FORECAST_REQUESTS_MAX, ceil(service / _FORECAST_REQUEST_SERVICE))
    due_at = now + HORIZON_S
    return GroupFigures(GroupKey(model, classes.ordered[0].name, 0), requests, service, 0.0, 0.0, due_at, due_at)


def _counted_as_new(
    backlogs: Sequence[TenantBacklog], plan: Plan, now: float, classes: SloClasses
) -> list[TenantBacklog]:
    """Return the backlogs with new due times for the groups with entitled work that is late in the plan."""
    late = {
        (each.tenant, each.key)
        for order in plan.groups.values()
        for each in order
        if each.is_entitled and each.ends_at > each.due_at
    }

    def renewed(tenant: str, group: GroupFigures) -> GroupFigures:
        if (tenant, group.key) not in late:
            return group
        due_at = max(group.due_at, classes.named(group.key.slo_class).due_at(now))
        return replace(group, due_at=due_at, last_due_at=max(due_at, group.last_due_at))

    return [replace(each, groups=[renewed(each.tenant, group) for group in each.groups]) for each in backlogs]


def _late_requests(plan: Plan) -> int:
    return sum(
        each.requests
        for order in plan.groups.values()
        for each in order
        if each.is_entitled and each.ends_at - each.due_at > _LATE_MIN_S
    )


def _is_in_time(plan: Plan) -> bool:
    return plan.entitled_late_s <= _LATE_MIN_S and plan.entitled_left_out == 0


def _reason(plan: Plan, count: int) -> str:
    if plan.entitled_left_out:
        return f"with {count} workers, {plan.entitled_left_out} entitled requests have no place in a plan"
    return f"with {count} workers, entitled work is {plan.entitled_late_s:.0f} request seconds late"
