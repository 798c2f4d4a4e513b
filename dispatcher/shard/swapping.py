"""Decides which models workers load, by the plan that the log holds. A worker learns of it from the answer to
its report, for which the leader asks when the order is in the log.

First come the models that must be loaded whatever a plan says (policies/planning/fleet.py), then those of a fresh
plan. No worker swaps before its residency is over, but for one case (`_assign` there).

An ordered worker gets no new calls, and its heartbeats are answered with the model. The order ends when the worker
reports the model. If it does not in time (Worker.order_ends_at), the order is withdrawn: a worker that cannot load a
model serves its own again, and another worker gets the next order.

The payers. A swap takes service from all tenants, so those that need it pay: `swap_charge` times the seconds of the
load, as the worker expects them, times the worker's service per second with the model. Each tenant with waiting calls
for the model would have caused the swap alone, so they pay equal parts: the Shapley value of this game. (If the one
that is due first paid all, its calls would wait longer, and be due first the next time too.) A tenant pays at the end
of the call that was the first of its queue (attempts.py). A call that leaves its queue pays nothing, and one of a swap
that fails pays. A drain costs nothing, because its time is for calls that pay. Unlike the load of an adapter, a swap is
not the tenants' decision: it counts in the surplus only, not in guarantees and usage. The sum is in the order, so the
fold needs no price.

A proposed plan is checked against the present state, and kept as a fact. A plan is advice: what is wrong in it is
dropped. A plan is dropped as a whole if no worker can swap, if it is from the future, if it is not newer than the last
one, or if it is older than MODELS_S. Of another plan these parts are dropped: absent workers, models that their workers
cannot load, groups that it does not have, and what is more than the log has room for.

Without a worker of several models, one test for each decision is all that this costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, isfinite

from dispatcher.model.commands import Accept, Attempts, Command, Outcome, Plan, Report, Tick
from dispatcher.model.facts import ModelOrdered, Planned
from dispatcher.model.fleet import CAPACITY_MAX, GROUPS_MAX, ORDER_MAX, WorkerPlan
from dispatcher.model.formats import OLDEST
from dispatcher.policies.orders.queues import Call, Tenant
from dispatcher.policies.planning.fleet import DRAIN_S, FleetWorker, fallback_models, rest_left_s
from dispatcher.policies.share_bounds import COST_MAX
from dispatcher.shard.fold import Decision
from dispatcher.shard.state.records import Worker, due_at
from dispatcher.shard.state.state import State
from dispatcher.shard.workers import USABLE

_TRIGGERS = frozenset({Accept, Report, Tick, Plan})
_SWAP_MAX_S = 600.0
"""A worker does not load a model if the swap takes longer."""
PAYERS_MAX = 64
"""At most so many tenants pay for a swap, those that are due first."""
LOOK_S = 0.0001
LOOK_FREE = 50
"""A look at a fleet takes about 10 µs for each worker that can be ordered. So beyond LOOK_FREE workers it comes at most
every LOOK_S for each of them, a tenth of a leader's time, unless another model is missing or a plan has come."""
DRAIN_MIN_S = 2.0
"""A drain is expected to take at least this long: the worker may learn of the order from its next heartbeat."""


def order_loads(decision: Decision, commands: Sequence[Command]) -> None:
    """Order workers to load models, and withdraw orders that were not carried out in time."""
    state = decision.state
    if not state.slots.can_swap or not any(type(command) in _TRIGGERS for command in commands):
        return
    for worker in list(state.changing.values()) if state.changing else ():
        if worker.load and state.at >= worker.order_ends_at:
            decision.add(ModelOrdered(worker.name, ""))
    missing = _missing(state)
    if not _must_look(state, commands, missing):
        return
    models = _planned_models(state)
    if missing and (waiting := _waiting_since(state, missing)):
        usable = [each for each in state.workers.values() if each.load or each.config.state in USABLE]
        fleet = [fleet_worker(each, state.at) for each in usable]
        expected_s = _drain_s(fleet)
        needed = fallback_models(waiting, fleet, state.at, expected_drain_s=expected_s, planned=models or None)
        _order(decision, needed)
        models = {name: model for name, model in models.items() if name not in needed}
    _order(decision, models, rest_left_s)


def _must_look(state: State, commands: Sequence[Command], missing: frozenset[str]) -> bool:
    """Return whether a look at all workers is due, and note that it comes now. `missing`: models."""
    passed_s = state.at - state.fleet_looked_at
    is_early = 0.0 <= passed_s < LOOK_S * (len(state.workers) - LOOK_FREE)
    if is_early and missing <= state.fleet_missed and not any(type(command) is Plan for command in commands):
        return False
    state.fleet_looked_at, state.fleet_missed = state.at, missing
    return True


def answered_with_loads(state: State, commands: Sequence[Command], outcomes: list[Outcome]) -> None:
    """Put the ordered models into the answers to heartbeats."""
    if not state.slots.can_swap:
        return
    for number, outcome in enumerate(outcomes):
        if isinstance(outcome, Attempts) and isinstance(commands[number], Report):
            outcomes[number] = outcome._replace(load=state.workers[outcome.worker].load)


def fleet_worker(worker: Worker, now: float) -> FleetWorker:
    """Return the worker as the planner sees it. Impossible numbers of its report are replaced.

    A worker counts as having its model since the end of its last order, if that is later.
    """
    swap_s = {model: max(0.0, seconds) for model, seconds in worker.swap_s.items() if seconds <= _SWAP_MAX_S}
    loaded_at = now if worker.load else max(worker.config.loaded_at, worker.ordered_at)
    measured = {each.model: each.service_per_s for each in worker.config.models}
    measured[worker.model] = worker.config.service_per_s or measured.get(worker.model, 0.0)
    kind = " ".join([str(worker.slots), *sorted(swap_s)])
    return FleetWorker(
        worker.name, kind, worker.target, loaded_at, swap_s, _free_s(worker), _possible(measured),
        max(1, worker.slots), _batch_s(worker), len(worker.running), _swapping_s(worker, now), worker.last_swap_s,
        worker.paid_until, worker.expected_per_s,
    )  # fmt: skip


def _possible(rates: Mapping[str, float]) -> dict[str, float]:
    """Return the rates that a worker can have."""
    return {model: rate for model, rate in rates.items() if 0 < rate <= CAPACITY_MAX}


def _swapping_s(worker: Worker, now: float) -> float:
    """Return the rest of a swap under way, without its drain: all of it while calls run."""
    if not worker.load:
        return 0.0
    swap_s = max(0.0, worker.swap_s.get(worker.load, 0.0))
    return swap_s if worker.running else max(0.0, worker.ordered_at + swap_s - now)


def _free_s(worker: Worker) -> float:
    """Return in how many seconds the running calls have ended: on average, half of their cost is left. A drain bounds
    it."""
    capacity_per_s, left = worker.capacity_per_s, sum(call.cost for call in worker.running.values()) / 2
    return min(DRAIN_S, left / capacity_per_s if capacity_per_s else 0.0)


def _batch_s(worker: Worker) -> float:
    """Return how long a full batch of calls like the running ones takes: so long is a drain, if it is not full too."""
    capacity_per_s = worker.capacity_per_s
    if not worker.running or not capacity_per_s:
        return 0.0
    mean = sum(call.cost for call in worker.running.values()) / len(worker.running)
    return min(DRAIN_S, max(1, worker.slots) * mean / capacity_per_s)


def _drain_s(fleet: Sequence[FleetWorker]) -> float:
    """Return how long a drain probably takes: the longest of the workers now."""
    return min(DRAIN_S, DRAIN_MIN_S + max((worker.free_s for worker in fleet), default=0.0))


def _order(
    decision: Decision,
    models: Mapping[str, str],
    waits_s: Callable[[FleetWorker, str, float, bool], float] | None = None,
) -> None:
    """Order these models. `waits_s`: the seconds until a worker may swap; None if all may now."""
    state = decision.state
    for name, model in models.items():
        worker = state.workers.get(name)
        if worker is None or worker.load or worker.model == model or worker.config.state not in USABLE:
            continue
        fleet = fleet_worker(worker, state.at)
        is_waited_for = worker.model in state.waiting_models
        if fleet.fits(model) and not (waits_s and waits_s(fleet, model, state.at, is_waited_for)):
            decision.add(ModelOrdered(name, model, *_charge(state, fleet, model)))


def _charge(state: State, worker: FleetWorker, model: str) -> tuple[tuple[str, ...], float]:
    """Return the calls that pay for the swap, and what each pays. A log of format 5 cannot say it, so none pays."""
    rate = worker.known_per_s(model) or worker.known_per_s(worker.loaded)
    service = state.settings.swap_charge * worker.swap_to_s(model) * rate
    if service <= 0 or state.format == OLDEST:
        return (), 0.0
    heads = [head for tenant in state.tenants.values() if (head := _first_due(tenant, model)) is not None]
    needing = sorted(
        (head for head in heads if not head.deferred or all(each.deferred for each in heads)),
        key=lambda head: (due_at(head), head.arrival),
    )[:PAYERS_MAX]
    return (tuple(head.id for head in needing), min(service, COST_MAX) / len(needing)) if needing else ((), 0.0)


def _first_due(tenant: Tenant, model: str) -> Call | None:
    """Return the tenant's waiting call for the model that is due first."""
    queues = tenant.queues.values() if tenant.waiting else ()
    return min((queue.head() for queue in queues if queue.count and queue.model == model), key=due_at, default=None)


def _waiting_since(state: State, missing: frozenset[str]) -> dict[str, float]:
    """Return the models with waiting calls that may cause a swap, each with the time since which it is missing: the
    arrival of a waiting call, or the last order to load it or to load another model in its place."""
    found = dict.fromkeys(state.waiting_models.keys() - missing, state.at)
    for tenant in state.tenants.values():
        for queue in tenant.queues.values() if tenant.waiting else ():
            if queue.count and queue.model in missing:
                head = queue.head()
                if not head.deferred or head.terms.due_at <= state.at + DRAIN_S + _swap_s(state, queue.model):
                    found[queue.model] = min(head.arrived_at, found.get(queue.model, inf))
    return {model: max(since, state.models_turned.get(model, 0.0)) for model, since in found.items()}


def _missing(state: State) -> frozenset[str]:
    """Return the models with waiting calls that no worker holds."""
    held = state.held_models.counts
    return frozenset([model for model in state.waiting_models if model not in held])


def _swap_s(state: State, model: str) -> float:
    """Return the shortest time in which a worker can load the model."""
    return min((each.swap_s[model] for each in state.workers.values() if model in each.swap_s), default=0.0)


MODELS_S = 10.0
"""For so long a plan's models are used. After this each worker keeps its model."""
ORDER_S = 30.0
"""For so long a plan's order is used."""
SKEW_S = 2.0
"""The clocks of two processes may differ by so much (rule 10)."""


def keep_plan(decision: Decision, command: Plan) -> None:
    """Write the plan, unless it is useless."""
    state = decision.state
    if not state.slots.can_swap or not _is_new(state, command.made_at):
        return
    groups = command.groups[:GROUPS_MAX]
    workers = (_fitting_part(state, each, len(groups)) for each in command.workers)
    kept = {each.worker: each for each in workers if each is not None}
    if kept:
        decision.add(Planned(command.made_at, tuple(kept.values()), groups))


def _planned_models(state: State) -> dict[str, str]:
    """Return the model of each worker in the plan, while the plan is fresh."""
    plan = state.plan
    if plan is None or state.at - plan.made_at > MODELS_S:
        return {}
    return {each.worker: each.model for each in plan.workers}


def _is_new(state: State, made_at: float) -> bool:
    last = state.plan.made_at if state.plan is not None else 0.0
    return isfinite(made_at) and last < made_at <= state.at + SKEW_S and state.at - made_at <= MODELS_S


def _fitting_part(state: State, plan: WorkerPlan, groups: int) -> WorkerPlan | None:
    """Return the part of a worker's plan that fits the state; None if nothing does."""
    worker = state.workers.get(plan.worker)
    if worker is None or plan.model not in worker.swap_s:
        return None
    return plan._replace(order=tuple(number for number in plan.order if 0 <= number < groups)[:ORDER_MAX])
