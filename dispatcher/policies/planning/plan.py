"""The plan of a fleet: the model of each worker, and the order of request groups. Pure; gate and simulator call it.

1. claims.py: pieces of the tenants' groups, entitled or surplus.
2. fleet.py: the earliest start of swaps.
3. A start: the last plan with new pieces inserted by due time, or insertion alone if that costs less.
4. search.py, then hysteresis: better orders, without swaps that do not pay. The result never costs more than the
   start without such swaps.
5. Idle workers: load a deferred model (idle.py).
6. choice.py, if arrivals are expected and not all that waits is in time anyway: simple rules and this plan are played
   forward, and the workers get the models of the rule that is best for the worst-off tenant within its share.

Source: QLM (SoCC 2024), sections 4 and 7; the deviations stand here and in the modules named. A plan is advice:
dispatch works without it, and fleet.py, `fallback_models`, loads what no plan loads.

It is the same for the same arguments. Unknown names in the last plan are ignored, and all of it if it is older than a
minute or from the future. If no throughput is measured, no time can be planned: then each worker keeps its model, and
there are no orders. The gate does not use such a plan: without one its models take turns.

Hysteresis. A plan is made every few seconds from estimates, and a swap stops a worker. So the first swap of a queue
happens only if it lowers the objective by more than it costs the queue:

    cost(loaded model first) - cost(as planned) > cost(as planned) - cost(as planned, with the first swap in no time)

Otherwise the queue's groups of the loaded model go first, in their order. A queue without such groups stays: its worker
would be idle. The rest of the running batch is in all three costs, as the time at which the worker is free.

Drains. A worker that swaps drains first: its batch thins out, and it ends with the longest request. So a swap costs its
own seconds and what the drain takes longer than the rest of a full batch.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import inf

from dispatcher.policies.planning.choice import RuleChoice, choose
from dispatcher.policies.planning.claims import Claims, Piece, TenantBacklog, claims
from dispatcher.policies.planning.fleet import FleetWorker, ServiceRates, rest_left_s
from dispatcher.policies.planning.groups import GroupKey
from dispatcher.policies.planning.idle import Tail, place_deferred
from dispatcher.policies.planning.problem import (
    PlannedWorker,
    Problem,
    Queue,
    WaitingGroup,
    ends_s,
    late_requests,
    plan_cost,
    queue_cost,
)
from dispatcher.policies.planning.search import anneal, insert_by_due_time
from dispatcher.policies.planning.slo import SloClasses

MOVES = 20_000
_LAST_PLAN_S = 60.0
"""An older plan is no start."""


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """`seed`: of the annealing. `classes`: the SLO classes of the groups. `pieces_max`, `pieces_per_worker_max`: the
    pieces of a plan; further ones wait for a later plan. `capacity_per_s`: the service of which tenants are entitled to
    parts; None for that of the workers."""

    seed: int = 0
    classes: SloClasses = field(default_factory=SloClasses)
    pieces_max: int = 1000
    pieces_per_worker_max: int = 64
    capacity_per_s: float | None = None


SETTINGS = PlanSettings()


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """Requests of a tenant's group, the first of those not yet in the plan. Times are Unix seconds.

    `due_at`: of the first of them. `ends_at`: when the last one is served.
    """

    tenant: str
    key: GroupKey
    requests: int
    due_at: float
    ends_at: float
    is_entitled: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """`models`: for every worker, the model that it should have now; a worker with another one loaded should swap.

    `groups`: each worker's order. `entitled_late_s`, `surplus_late_s`: request seconds of lateness (costs.PlanCost).
    `swap_s`: of all swaps in the orders. `late_requests`: expected.

    `rule`: what was best when played forward; "" if nothing was played. The figures above are those of the orders.
    `late_parts`, `forecast_s`: what it forecasts (choice.py, RuleChoice; forecast_record.py).

    `left_out`: requests without a place, because no worker fits, or because a plan holds no more;
    `entitled_left_out`: the entitled ones among them. Deferred requests with slack have a place only on a worker with
    their model or an idle one, and are no part of these figures otherwise.
    """

    made_at: float
    models: Mapping[str, str]
    groups: Mapping[str, tuple[PlannedGroup, ...]]
    entitled_late_s: float = 0.0
    surplus_late_s: float = 0.0
    swap_s: float = 0.0
    late_requests: float = 0.0
    left_out: int = 0
    entitled_left_out: int = 0
    rule: str = ""
    late_parts: Mapping[str, float] = field(default_factory=dict)
    forecast_s: float = 0.0


_WORK_S = 0.5
"""So many seconds for each worker count as work."""


def make_plan(
    backlogs: Sequence[TenantBacklog],
    workers: Sequence[FleetWorker],
    now: float,
    *,
    last: Plan | None = None,
    moves: int = MOVES,
    settings: PlanSettings = SETTINGS,
) -> Plan:
    """Return the plan. `moves`: the budget of the annealing. `now`: Unix seconds.

    Raises ValueError for two workers or two backlogs of one name, an unknown SLO class, or an impossible number.
    """
    if len({worker.name for worker in workers}) < len(workers):
        raise ValueError("two workers have the same name; give one entry for each worker")
    models = {group.key.model for backlog in backlogs for group in backlog.groups}
    models |= {model for backlog in backlogs for model in backlog.forecast_service}
    rates = ServiceRates(workers, models | {worker.loaded for worker in workers})
    if not rates.are_known:
        waiting = sum(group.requests for backlog in backlogs for group in backlog.groups)
        kept = {worker.name: worker.loaded for worker in workers}
        return Plan(now, kept, {worker.name: () for worker in workers}, left_out=waiting)
    pieces_max = min(settings.pieces_max, settings.pieces_per_worker_max * len(workers))
    claimed = claims(backlogs, workers, rates, now, settings.classes, pieces_max, settings.capacity_per_s)
    plan = _Planning(claimed, workers, rates, now).plan(last, moves, settings.seed)
    due_s: dict[str, float] = {}
    for model, each in (pair for backlog in backlogs for pair in backlog.expected.items()):
        due_s[model] = min(each.due_s, due_s.get(model, inf))
    if not due_s or (_is_work_in_time(plan, workers, min(due_s.values())) and not _is_away_long(plan, workers, due_s)):
        return plan
    chosen = choose(backlogs, claimed, workers, rates, now, last.rule if last else "", plan.models)
    return _follow(plan, chosen, workers)


def _is_work_in_time(plan: Plan, workers: Sequence[FleetWorker], soonest_s: float) -> bool:
    """Return whether the workers have work, and all of it is in time: then the order of least swapping ends it soonest,
    and what may yet come has time. Without this a burst of an hour's slack was served at 0.57 times the speed.

    `soonest_s`: how soon expected requests are due. If a swap there and back would make them late, the swaps must take
    less than the work: otherwise what waits does not decide alone."""
    work_s = sum(order[-1].ends_at - plan.made_at for order in plan.groups.values() if order)
    is_late = bool(plan.entitled_late_s or plan.surplus_late_s)
    there_and_back_s = [
        max(swaps_s) + _return_s(worker, workers)
        for worker in workers
        if (swaps_s := [worker.swap_to_s(model) for model in _models_to_load(plan, worker)])
    ]
    if max(there_and_back_s, default=0.0) > soonest_s:
        work_s -= plan.swap_s
        is_late |= work_s < plan.swap_s
    return not is_late and work_s >= _WORK_S * len(workers)


def _is_away_long(plan: Plan, workers: Sequence[FleetWorker], due_s: Mapping[str, float]) -> bool:
    """Return whether the plan leaves a model without a worker until requests that come for it would be late.

    `due_s`: of each model with expected arrivals, how soon one is due. A worker is away for the swap, its groups
    of the new model, and the swap back. A drain is not counted: it is taken as that of a full batch, and with it one
    rare request was played forward and came too late (`rare_short`)."""
    left = {worker.loaded for worker in workers} - set(plan.models.values())
    away_s = [
        (worker.loaded, _first_turn_s(plan, worker) + _return_s(worker, workers))
        for worker in workers
        if worker.loaded in left
    ]
    return any(seconds > due_s.get(model, inf) for model, seconds in away_s)


def _first_turn_s(plan: Plan, worker: FleetWorker) -> float:
    """Return in how many seconds the worker has served the first model of its order."""
    order = plan.groups[worker.name]
    first = takewhile(lambda group: group.key.model == order[0].key.model, order)
    return max((group.ends_at - plan.made_at for group in first), default=0.0)


def _models_to_load(plan: Plan, worker: FleetWorker) -> set[str]:
    return {group.key.model for group in plan.groups[worker.name]} - {worker.loaded}


def _follow(plan: Plan, choice: RuleChoice, workers: Sequence[FleetWorker]) -> Plan:
    """Return the plan with the models of the choice: a worker's groups of its new model come first."""
    waiting = _count_waiting(plan, workers)
    models, groups = dict(plan.models), dict(plan.groups)
    for worker in workers:
        model = choice.models[worker.name]
        may_swap = rest_left_s(worker, model, plan.made_at, waiting[worker.loaded] > 0) == 0.0
        models[worker.name] = model if may_swap else worker.loaded
        groups[worker.name] = _begin_with(models[worker.name], plan.groups[worker.name], plan.made_at)
    return replace(
        plan, models=models, groups=groups, rule=choice.rule, late_parts=choice.late_parts, forecast_s=choice.horizon_s
    )


def _count_waiting(plan: Plan, workers: Sequence[FleetWorker]) -> Counter[str]:
    """Return by model the requests that wait, less the free slots of workers with it: others start at once."""
    found = Counter[str]()
    for order in plan.groups.values():
        for group in order:
            found[group.key.model] += group.requests
    for worker in workers:
        if not worker.swapping_s:
            found[worker.loaded] -= max(0, worker.slots - worker.running)
    return found


def _begin_with(model: str, order: Sequence[PlannedGroup], now: float) -> tuple[PlannedGroup, ...]:
    """Return the groups with those of the model first. Each takes as long as before."""
    starts = (now, *(group.ends_at for group in order))
    timed = [(group, group.ends_at - start) for group, start in zip(order, starts, strict=False)]
    found, end = [], now
    for group, seconds in sorted(timed, key=lambda each: each[0].key.model != model):
        end += seconds
        found.append(replace(group, ends_at=end))
    return tuple(found)


class _Planning:
    """One call's values. `live`: pieces without slack, the groups of `problem` by number."""

    def __init__(self, claimed: Claims, workers: Sequence[FleetWorker], rates: ServiceRates, now: float) -> None:
        self.claimed, self.workers, self.rates, self.now = claimed, workers, rates, now
        self.live = [piece for piece in claimed.pieces if not piece.has_slack]
        self.waited_for = {piece.key.model for piece in claimed.pieces}
        self.live_models = {piece.key.model for piece in self.live}
        self.kinds = sorted({worker.kind for worker in workers})
        self.problem = Problem(
            [self._group(number, piece) for number, piece in enumerate(self.live)],
            [self._worker(worker) for worker in workers],
        )

    def plan(self, last: Plan | None, moves: int, seed: int) -> Plan:
        start = self._start(last)
        better = anneal(self.problem, start, moves, seed)
        queues = min(steady(self.problem, better), steady(self.problem, start), key=self._cost)
        models = {worker.name: self._model(at, queue) for at, (worker, queue) in self._of_workers(queues)}
        groups = {worker.name: self._order(at, queue) for at, (worker, queue) in self._of_workers(queues)}
        self._use_idle(queues, models, groups)
        cost = plan_cost(self.problem, queues)
        unservable = [self.live[group] for group in self.problem.unservable]
        return Plan(
            self.now, models, {name: tuple(order) for name, order in groups.items()},
            cost.entitled_s, cost.surplus_s, cost.swap_s, late_requests(self.problem, queues),
            self.claimed.left_out + sum(piece.requests for piece in unservable),
            self.claimed.entitled_left_out + sum(piece.requests for piece in unservable if piece.is_entitled),
        )  # fmt: skip

    def _of_workers(self, queues: list[Queue]) -> Iterator[tuple[int, tuple[FleetWorker, Queue]]]:
        return enumerate(zip(self.workers, queues, strict=True))

    def _group(self, number: int, piece: Piece) -> WaitingGroup:
        model = piece.key.model
        seconds = {kind: piece.service / self.rates.per_s(kind, model) for kind in self.kinds}
        return WaitingGroup(
            str(number), model, piece.requests, piece.due_at - self.now, seconds, piece.is_entitled, piece.weight
        )

    def _worker(self, worker: FleetWorker) -> PlannedWorker:
        """Return the worker of the problem."""
        swap_s = {model: worker.swap_to_s(model) for model in self.live_models if worker.fits(model)}
        if worker.loaded in swap_s:
            swap_s[worker.loaded] = _return_s(worker, self.workers)
        drain_s = max(0.0, worker.drain_s - worker.free_s)
        swap_s = {model: seconds + drain_s for model, seconds in swap_s.items()}
        held = {model: self._held_s(worker, model) for model in swap_s}
        return PlannedWorker(worker.name, worker.kind, worker.loaded, swap_s, worker.free_s, held)

    def _held_s(self, worker: FleetWorker, model: str) -> float:
        return rest_left_s(worker, model, self.now, worker.loaded in self.waited_for)

    def _cost(self, queues: list[Queue]) -> float:
        return sum(queue_cost(self.problem, at, queue) for at, queue in enumerate(queues))

    def _start(self, last: Plan | None) -> list[Queue]:
        """Return the last plan, completed, or insertion alone if that costs less."""
        inserted = insert_by_due_time(self.problem)
        if last is None or not self.now - _LAST_PLAN_S <= last.made_at <= self.now:
            return inserted
        return min(insert_by_due_time(self.problem, self._queues_of(last)), inserted, key=self._cost)

    def _queues_of(self, last: Plan) -> list[Queue]:
        """Return the orders of the last plan with today's pieces: of each group, those that are due first."""
        pieces: dict[object, deque[int]] = {}
        for number, piece in enumerate(self.live):
            pieces.setdefault((piece.tenant, piece.key, piece.is_entitled), deque()).append(number)
        queues: list[Queue] = [[] for _ in self.workers]
        for at, (worker, queue) in self._of_workers(queues):
            for planned in last.groups.get(worker.name, ()):
                found = pieces.get((planned.tenant, planned.key, planned.is_entitled))
                if found and self.problem.seconds_on[at][found[0]] < inf:
                    queue.append(found.popleft())
        return queues

    def _model(self, at: int, queue: Queue) -> str:
        """Return the model of the first group, if the swap to it may start now; else the loaded one."""
        worker = self.workers[at]
        model = self.live[queue[0]].key.model if queue else worker.loaded
        return model if self._held_s(worker, model) == 0.0 else worker.loaded

    def _order(self, at: int, queue: Queue) -> list[PlannedGroup]:
        ends = ends_s(self.problem, at, queue)
        return [self._planned_group(self.live[group], end_s) for group, end_s in zip(queue, ends, strict=True)]

    def _planned_group(self, piece: Piece, end_s: float) -> PlannedGroup:
        return PlannedGroup(piece.tenant, piece.key, piece.requests, piece.due_at, self.now + end_s, piece.is_entitled)

    def _use_idle(self, queues: list[Queue], models: dict[str, str], groups: dict[str, list[PlannedGroup]]) -> None:
        """Give deferred work a place. Changes both mappings."""
        idle, tails = set(), {}
        for worker in self.workers:
            order = groups[worker.name]
            tails[worker.name] = Tail(
                order[-1].key.model if order else worker.loaded,
                order[-1].ends_at - self.now if order else worker.free_s,
            )
            if not (order or worker.free_s > 0 or worker.loaded in self.waited_for):
                idle.add(worker.name)
        deferred = [piece for piece in self.claimed.pieces if piece.has_slack]
        for name, piece, end_s in place_deferred(deferred, self.workers, self.rates, tails, models, idle, self.now):
            groups[name].append(self._planned_group(piece, end_s))


def _return_s(worker: FleetWorker, workers: Sequence[FleetWorker]) -> float:
    """Return the time to swap the loaded model in again later: as on other workers, or as that of other models."""
    others = [each for each in workers if each.loaded != worker.loaded and each.fits(worker.loaded)]
    alike = [each.swap_to_s(worker.loaded) for each in others if each.kind == worker.kind]
    own = (swap_s for model, swap_s in worker.swap_s.items() if model != worker.loaded and swap_s < inf)
    return alike[0] if alike else max(own, default=0.0)


def steady(problem: Problem, queues: list[Queue]) -> list[Queue]:
    """Return the queues without first swaps that do not pay. `queues` is not changed."""
    return [_steady_queue(problem, worker, queue) for worker, queue in enumerate(queues)]


def _steady_queue(problem: Problem, worker: int, queue: Queue) -> Queue:
    loaded, model_of = problem.loaded_on[worker], problem.model_of
    own = [group for group in queue if model_of[group] == loaded]
    if not own or model_of[queue[0]] == loaded:
        return list(queue)
    kept = own + [group for group in queue if model_of[group] != loaded]
    as_planned = queue_cost(problem, worker, queue)
    fall = queue_cost(problem, worker, kept) - as_planned
    return list(queue) if fall > as_planned - _cost_after_swap(problem, worker, queue) else kept


def _cost_after_swap(problem: Problem, worker: int, queue: Queue) -> float:
    """Return the queue's cost if its first swap took no time."""
    before = problem.loaded_on[worker]
    problem.loaded_on[worker] = problem.model_of[queue[0]]
    cost = queue_cost(problem, worker, queue)
    problem.loaded_on[worker] = before
    return cost
