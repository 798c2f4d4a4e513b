"""Decides which models workers load (policies/planning/fallback.py). A worker learns of it from its next heartbeat.

An ordered worker gets no new calls, and its heartbeats are answered with the model. The order ends when the worker
reports the model. If it does not in time (Worker.order_ends_at), the order is withdrawn: a worker that cannot load a
model serves its own again, and another worker gets the next order.

Without a worker of several models, one test for each decision is all that this costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.model.commands import Accept, Attempts, Command, Outcome, Report, Tick
from dispatcher.model.facts import ModelOrdered
from dispatcher.policies.planning.fallback import DRAIN_S, SwapWorker, fallback_loads
from dispatcher.shard.decision import Decision
from dispatcher.shard.records import Worker
from dispatcher.shard.state import State

TRIGGERS = frozenset({Accept, Report, Tick})
COUNTED = frozenset({"serving", "silent", "resting"})
"""A worker in one of these states has its model. A draining one leaves, or its engine starts anew."""


def order_loads(decision: Decision, commands: Sequence[Command]) -> None:
    """Order workers to load missing models, and withdraw orders that were not carried out in time."""
    state = decision.state
    if not state.slots.can_swap or not any(type(command) in TRIGGERS for command in commands):
        return
    for worker in list(state.workers.values()):
        if worker.load and state.at >= worker.order_ends_at:
            decision.add(ModelOrdered(worker.name, ""))
    if state.waiting:
        _order_missing(decision)


def answered_with_loads(state: State, commands: Sequence[Command], outcomes: list[Outcome]) -> None:
    """Put the ordered models into the answers to heartbeats."""
    if not state.slots.can_swap:
        return
    for number, outcome in enumerate(outcomes):
        if isinstance(outcome, Attempts) and isinstance(commands[number], Report):
            outcomes[number] = outcome._replace(load=state.workers[outcome.worker].load)


def _order_missing(decision: Decision) -> None:
    state = decision.state
    copies = Counter(each.target for each in state.workers.values() if each.config.state in COUNTED or each.load)
    missing = {model for model in state.waiting_models if not copies[model]}
    if not missing:
        return
    workers = [_swap_worker(each) for each in state.workers.values() if _may_swap(each)]
    demand = _Demand(state, workers)
    for load in fallback_loads(
        [model for model in missing if workers and demand.is_due(model)],
        state.models_ordered,
        workers,
        state.waiting_models.keys(),
        copies,
        state.at,
    ):
        decision.add(ModelOrdered(load.worker, load.model))


def _may_swap(worker: Worker) -> bool:
    return worker.config.state == "serving" and not worker.load and bool(worker.swap_s)


def _swap_worker(worker: Worker) -> SwapWorker:
    since = max(worker.config.loaded_at, worker.ordered_at)
    return SwapWorker(worker.name, worker.model, since, len(worker.running), worker.swap_s)


@dataclass(frozen=True, slots=True)
class _Demand:
    """Which waiting calls may cause a swap."""

    state: State
    workers: Sequence[SwapWorker]

    def is_due(self, model: str) -> bool:
        """Return whether a call waits for the model that is not deferred, or has no more slack than its load takes."""
        swap_s = min((each.swap_s[model] for each in self.workers if model in each.swap_s), default=0.0)
        calm_from = self.state.at + DRAIN_S + swap_s
        heads = (
            queue.head()
            for tenant in self.state.tenants.values()
            if tenant.waiting
            for queue in tenant.queues.values()
            if queue.model == model and queue.count
        )
        return any(not head.deferred or head.due_at <= calm_from for head in heads)
