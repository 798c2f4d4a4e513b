"""What the planner gets of a shard, and the command that proposes its plan to the shard.

The planner gets an immutable picture of the groups that wait, of the arrivals that are expected, also of tenants for
which nothing waits now, and of the workers. The groups are those of
planning/groups.py: model, SLO class and length bucket of the prompt. A picture of n waiting calls takes about a
microsecond for each. It is made while the gate decides nothing, so only when a plan is due.

The command has the next groups of each worker, in the size that the log has room for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dispatcher.model import commands
from dispatcher.model.fleet import GROUPS_MAX, ORDER_MAX, GroupPlan, WorkerPlan
from dispatcher.policies.clocks import Share
from dispatcher.policies.orders.queues import Call, Tenant
from dispatcher.policies.planning.claims import TenantBacklog
from dispatcher.policies.planning.fleet import FleetWorker
from dispatcher.policies.planning.groups import LENGTH_BOUNDS, GroupFigures, GroupKey
from dispatcher.policies.planning.history import ArrivalForecast
from dispatcher.policies.planning.plan import Plan, PlannedGroup
from dispatcher.policies.planning.slo import BATCH, INTERACTIVE, NORMAL
from dispatcher.shard.state.records import due_at
from dispatcher.shard.state.state import State
from dispatcher.shard.swapping import fleet_worker
from dispatcher.shard.workers import USABLE

_HORIZON_S = 60.0


class PlanInput(NamedTuple):
    backlogs: tuple[TenantBacklog, ...]
    workers: tuple[FleetWorker, ...]
    made_at: float
    """The time of the picture, in Unix seconds."""

    @property
    def has_rate(self) -> bool:
        """Whether any throughput is measured or expected. Otherwise no time can be planned."""
        rates = (each for worker in self.workers for each in (worker.service_per_s, worker.expected_per_s))
        return any(rate > 0 for each in rates for rate in each.values())


def plan_input(state: State, forecasts: Mapping[str, ArrivalForecast], now: float) -> PlanInput:
    """Return the picture. `forecasts`: the arrivals of the tenants, by model."""
    groups: dict[str, dict[GroupKey, list[Call]]] = {}
    for call in state.calls.values():
        if call.queued:
            groups.setdefault(call.tenant.name, {}).setdefault(_key(call), []).append(call)
    coming = {tenant for each in forecasts.values() for tenant in each.tenants if tenant in state.tenants}
    names = (*groups, *sorted(coming - groups.keys()))
    backlogs = tuple(_backlog(state, state.tenants[name], groups.get(name, {}), forecasts, now) for name in names)
    usable = (worker for worker in state.workers.values() if worker.load or worker.config.state in USABLE)
    return PlanInput(backlogs, tuple(fleet_worker(worker, now) for worker in usable), now)


def predicts_miss(state: State, now: float) -> bool:
    """Return whether a call will probably be late: its model is missing, or the backlog of its model takes longer than
    the time until the call is due. All of a model's waiting calls count as one like the head of a queue."""
    held = {worker.target for worker in state.workers.values()}
    if not state.waiting_models.keys() <= held:
        return True
    return any(due_at(head) < now + _backlog_s(state, head) for head in _heads(state))


def _heads(state: State) -> Iterator[Call]:
    for tenant in state.tenants.values():
        if tenant.waiting:
            yield from (queue.head() for queue in tenant.queues.values() if queue.count)


def _backlog_s(state: State, head: Call) -> float:
    capacity_per_s = state.slots.capacity_per_s(head.model)
    return state.waiting_models[head.model] * head.cost / capacity_per_s if capacity_per_s > 0 else 0.0


def _key(call: Call) -> GroupKey:
    """Return the call's group. The planner needs of a class whether it is deferred, and of a call when it is due, so a
    class of another name counts as the default one."""
    slo_class = BATCH if call.deferred else INTERACTIVE if call.terms.slo_class == INTERACTIVE.name else NORMAL
    return GroupKey(call.model, slo_class.name, bisect_left(LENGTH_BOUNDS, call.terms.input_tokens))


def _backlog(
    state: State,
    tenant: Tenant,
    groups: Mapping[GroupKey, list[Call]],
    forecasts: Mapping[str, ArrivalForecast],
    now: float,
) -> TenantBacklog:
    share = Share(tenant.config.weight, tenant.config.rate_per_s, tenant.config.burst)
    expected = {model: each.service(tenant.name, now, _HORIZON_S) for model, each in forecasts.items()}
    return TenantBacklog(
        tenant.name,
        share,
        [_figures(key, calls) for key, calls in groups.items()],
        {model: service for model, service in expected.items() if service > 0},
        {model: found for model, each in forecasts.items() if (found := each.arrivals(tenant.name, now)) is not None},
        state.waits.begun.of(tenant.name, now),
    )


def _figures(key: GroupKey, calls: list[Call]) -> GroupFigures:
    """Return the figures of a group. A call's cost is its expected service. The planner needs no lengths of outputs."""
    due = [due_at(call) for call in calls]
    return GroupFigures(key, len(calls), sum(call.cost for call in calls), 0.0, 0.0, min(due), max(due))


def record_forecast(state: State, plan: Plan, now: float) -> bool:
    """Follow what the plan forecasts, unless an earlier forecast is followed. If that has ended, compare it with what
    came, and return True."""
    record = state.waits.forecasts
    has_ended = record.is_open and now >= record.ends_at
    if has_ended:
        waiting = (call for call in state.calls.values() if call.queued and due_at(call) < record.ends_at)
        record.end(Counter(call.tenant.name for call in waiting))
    record.begin(plan.late_parts, plan.forecast_s, now)
    return has_ended


def plan_command(plan: Plan) -> commands.Plan:
    """Return the command. The groups that come first in their orders stay as they are; the others are folded into one
    group, which takes the class and the length bucket of the laxest of them."""
    named = sorted(
        (
            (place, group.due_at, worker, group)
            for worker, order in plan.groups.items()
            for place, group in _first(order)
        ),
        key=lambda each: each[:3],
    )
    kept, folded = (named, []) if len(named) <= GROUPS_MAX else (named[: GROUPS_MAX - 1], named[GROUPS_MAX - 1 :])
    orders: dict[str, list[tuple[int, int]]] = {worker: [] for worker in plan.models}
    for number, (place, _, worker, _) in enumerate(kept):
        orders[worker].append((place, number))
    for place, _, worker, _ in folded:
        orders[worker].append((place, GROUPS_MAX - 1))
    groups = [_group(group) for *_, group in kept]
    groups += [_fold_groups([group for *_, group in folded])] if folded else []
    workers = (WorkerPlan(worker, model, _order(orders[worker])) for worker, model in plan.models.items())
    return commands.Plan(plan.made_at, tuple(workers), tuple(groups))


def _first(order: Sequence[PlannedGroup]) -> list[tuple[int, PlannedGroup]]:
    return list(enumerate(order[:ORDER_MAX]))


def _order(numbers: list[tuple[int, int]]) -> tuple[int, ...]:
    """Return the numbers of the groups in the order of their places, each once."""
    return tuple(dict.fromkeys(number for _, number in sorted(numbers)))


def _group(group: PlannedGroup) -> GroupPlan:
    return GroupPlan(group.tenant, *group.key, group.requests, group.due_at, group.ends_at, group.is_entitled)


def _fold_groups(groups: Sequence[PlannedGroup]) -> GroupPlan:
    laxest = max(groups, key=lambda group: group.due_at)
    return GroupPlan(
        "",
        "",
        laxest.key.slo_class,
        laxest.key.length_bucket,
        sum(group.requests for group in groups),
        min(group.due_at for group in groups),
        max(group.ends_at for group in groups),
        all(group.is_entitled for group in groups),
    )
