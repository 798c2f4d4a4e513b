"""Makes the command that proposes a plan: the next groups of each worker, in the size that the log has room for."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.model import commands
from dispatcher.model.fleet import GROUPS_MAX, ORDER_MAX, GroupPlan, WorkerPlan
from dispatcher.policies.planning.plan import Plan, PlannedGroup


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
