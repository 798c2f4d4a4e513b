"""The plan of a fleet at one moment, for an operator: queues by model, workers with their orders, and what is late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from dispatcher.model.fleet_plan import GroupPlan
from dispatcher.policies.planning.autoscaling import WorkersNeeded, workers_needed
from dispatcher.policies.planning.fleet import FleetWorker
from dispatcher.shard.plan_input import plan_input
from dispatcher.shard.planned import ORDER_S
from dispatcher.shard.records import Worker
from dispatcher.shard.state import State

WORKERS_MAX = 64
"""The number of workers needed is searched up to this, or up to twice the fleet."""
MOVES = 2_000
"""The planner's budget for each number of workers that is tried."""


@dataclass(frozen=True, slots=True)
class ModelPicture:
    """`waiting`: its waiting calls. `oldest_s`: how long the first of them has waited. `loading`: the workers that are
    ordered to load it."""

    model: str
    waiting: int
    oldest_s: float
    workers: tuple[str, ...]
    loading: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlannedWorkerPicture:
    """`ordered`: the model that the worker is ordered to load since `ordered_s` seconds, empty if none. `planned`: its
    model in the plan, empty without a plan. `order`: the numbers of its next groups; empty if the plan is old."""

    worker: str
    state: str
    model: str
    loaded_s: float | None
    """For how long it has its model; None for a worker that keeps its model."""
    swap_s: dict[str, float]
    ordered: str
    ordered_s: float
    planned: str
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanPicture:
    """`made_at`: of the plan, in Unix seconds; 0 if there is none. `groups`: of the plan, by number."""

    position: int
    at: float
    now: float
    made_at: float
    models: tuple[ModelPicture, ...]
    workers: tuple[PlannedWorkerPicture, ...]
    groups: tuple[GroupPlan, ...]

    @property
    def is_fresh(self) -> bool:
        """Whether the plan's order still counts."""
        return self.made_at > 0 and self.now - self.made_at <= ORDER_S

    @property
    def late_requests(self) -> int:
        return sum(group.requests for group in self.groups if group.is_late)


def plan_picture(state: State, position: int, now: float) -> PlanPicture:
    plan = state.plan
    is_fresh = plan is not None and now - plan.made_at <= ORDER_S
    planned = {each.worker: each for each in plan.workers} if plan is not None else {}

    def picture(worker: Worker) -> PlannedWorkerPicture:
        own, since = planned.get(worker.name), worker.config.loaded_at
        return PlannedWorkerPicture(
            worker.name, worker.config.state, worker.model, max(0.0, now - since) if since else None, worker.swap_s,
            worker.load, max(0.0, now - worker.ordered_at) if worker.load else 0.0, own.model if own else "",
            own.order if own and is_fresh else (),
        )  # fmt: skip

    workers = [state.workers[name] for name in sorted(state.workers)]
    return PlanPicture(
        position, state.at, now, plan.made_at if plan is not None else 0.0, _models(state, workers, now),
        tuple(map(picture, workers)), plan.groups if plan is not None else (),
    )  # fmt: skip


def _models(state: State, workers: Sequence[Worker], now: float) -> tuple[ModelPicture, ...]:
    names = {*state.waiting_models, *(worker.model for worker in workers), *(m for w in workers for m in w.swap_s)}
    oldest = dict.fromkeys(names, inf)
    for call in state.calls.values():
        if call.queued:
            oldest[call.model] = min(oldest[call.model], call.arrived_at)
    return tuple(
        ModelPicture(
            name,
            state.waiting_models.get(name, 0),
            max(0.0, now - oldest[name]) if oldest[name] < inf else 0.0,
            tuple(worker.name for worker in workers if worker.model == name),
            tuple(worker.name for worker in workers if worker.load == name),
        )
        for name in sorted(names)
    )


def needed_now(state: State, now: float) -> WorkersNeeded:
    """Return the smallest number of workers at which no entitled work is late. Workers of the kinds that the fleet has
    can be added. The search may take seconds."""
    picture = plan_input(state, {}, now)
    kinds: dict[str, FleetWorker] = {worker.kind: worker for worker in picture.workers}
    most = max(WORKERS_MAX, 2 * len(picture.workers)) if kinds else 0
    if not most:
        return WorkersNeeded(None, "no worker serves")
    return workers_needed(
        picture.backlogs, picture.workers, tuple(kinds.values()), now, workers_max=most, moves=MOVES
    )  # fmt: skip
