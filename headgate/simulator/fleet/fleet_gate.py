"""The production's shard before a fleet: queues of all tenants, and dispatch to workers that swap models.

The decisions are the production's (dispatcher/shard). Reports of workers go in when a worker's state changes, and
plans; dispatches and orders to swap come out. Times are seconds of the run; a run begins at EPOCH_S.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf

from dispatcher.model.call import CallTerms, TenantConfig
from dispatcher.model.commands import Accept, Command, End, Refused, Report, Return, call_id
from dispatcher.model.facts import Dispatched, Entry, ModelOrdered
from dispatcher.model.loadable import LoadableModel
from dispatcher.policies.clocks import Share
from dispatcher.policies.orders.slack_index import Slack
from dispatcher.policies.planning.plan import Plan
from dispatcher.policies.service import WEIGHTED_TOKENS
from dispatcher.policies.tiers import Tier
from dispatcher.shard.plan_command import plan_command
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard
from headgate.simulator.fleet.requests import FleetRequest
from headgate.simulator.fleet.worker import SimulatedWorker
from headgate.simulator.gates.shard_gate import EPOCH_S, PROCESS, WAITING_MAX

NOT_COUNTED = "declined"
"""The reason of a return that counts neither as an attempt of the call nor as a failure of the worker."""


class FleetGate:
    """`rates`: service units per second of a full worker, by kind and model."""

    def __init__(
        self, workers: Sequence[SimulatedWorker], shares: Mapping[str, Share], rates: Mapping[tuple[str, str], float]
    ) -> None:
        self._shard = Shard(ShardSettings(slack=Slack()))
        self._workers = {worker.name: worker for worker in workers}
        self._shares = shares
        self._rates = rates
        self._reported: dict[str, tuple[str | None, bool]] = {}
        """The model of each worker, and whether it swaps, at its last report: nothing else in a report changes."""
        self._calls: dict[str, FleetRequest] = {}
        self._names: dict[str, str] = {}
        """The ids of calls, by request."""
        self._sent = 0
        self._dispatched: list[tuple[FleetRequest, SimulatedWorker]] = []
        self._ordered: list[tuple[SimulatedWorker, str]] = []

    def arrive(self, request: FleetRequest, deferred: bool, now_s: float) -> None:
        """Queue the request, or set its `rejected`. The charge is for its true length, as in gated_engine.py."""
        self._sent += 1
        name, arrival = call_id(PROCESS, self._sent), request.request.arrival
        self._calls[name], self._names[request.name] = request, name
        share = self._shares.get(arrival.tenant, Share())
        outcome = self._do(
            Accept(
                name,
                self._sent,
                PROCESS,
                CallTerms(
                    arrival.tenant,
                    request.model,
                    WEIGHTED_TOKENS(arrival.input_tokens, max(1, arrival.output_tokens)),
                    inf,
                    False,
                    arrival.app or "",
                    arrival.interaction or "",
                    request.slo_class,
                    EPOCH_S + request.due_s,
                    deferred,
                    arrival.input_tokens,
                ),
                TenantConfig(1, share.weight, share.rate_per_s, share.burst, Tier.STANDARD, WAITING_MAX),
            ),
            now_s,
        )
        if isinstance(outcome, Refused):
            request.request.rejected = outcome.code
            self._forget(request)

    def returned(self, request: FleetRequest, now_s: float) -> None:
        name = self._names[request.name]
        self._do(Return(name, self._shard.state.calls[name].attempt, NOT_COUNTED), now_s)

    def ended(self, request: FleetRequest, now_s: float) -> None:
        name = self._names[request.name]
        outcome = "done" if request.request.rejected is None else "failed"
        attempt = self._shard.state.calls[name].attempt
        self._do(End(name, attempt, outcome, *request.request.charged_tokens), now_s)
        self._forget(request)

    def report(self, now_s: float) -> None:
        """Report the workers whose model or state has changed."""
        for worker in self._workers.values():
            now = (worker.model, worker.target is not None)
            if self._reported.get(worker.name) != now:
                self._reported[worker.name] = now
                self._do(self._report(worker), now_s)

    def plan(self, plan: Plan, now_s: float) -> None:
        """Propose a plan. The gate follows it or not."""
        self._do(plan_command(plan), now_s)

    def dispatches(self) -> Iterator[tuple[FleetRequest, SimulatedWorker]]:
        """Yield what the gate has dispatched since the last time."""
        while self._dispatched:
            yield self._dispatched.pop(0)

    def swaps(self) -> Iterator[tuple[SimulatedWorker, str]]:
        """Yield the workers that the gate has ordered to load a model since the last time, each with the model."""
        while self._ordered:
            yield self._ordered.pop(0)

    def _report(self, worker: SimulatedWorker) -> Report:
        model = worker.model or ""
        models = tuple(
            LoadableModel(
                name, 0.0 if name == model else each.swap_s, 0, 0.0, self._rates.get((worker.kind, name), 0.0)
            )
            for name, each in sorted(worker.models.items())
        )
        slots = worker.models[model].slots if model else 1
        rate = self._rates.get((worker.kind, model), 0.0)
        return Report(worker.name, "", model, slots, 0, 0.0, rate, worker.target is not None, 0.0, 0, (), (), models)

    def _do(self, command: Command, now_s: float) -> object:
        shard = self._shard
        outcomes, facts = shard.decide((command,), EPOCH_S + now_s)
        shard.confirm(Entry(shard.position, shard.at, "", "", 0, facts) if facts else None)
        self._dispatched += [
            (self._calls[fact.id], self._workers[fact.worker]) for fact in facts if type(fact) is Dispatched
        ]
        self._ordered += [
            (self._workers[fact.worker], fact.model) for fact in facts if type(fact) is ModelOrdered and fact.model
        ]
        return outcomes[0]

    def _forget(self, request: FleetRequest) -> None:
        del self._calls[self._names.pop(request.name)]
