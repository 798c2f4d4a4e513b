"""The production's shard before a fleet: queues of all tenants, and dispatch to workers that swap models.

The decisions are the production's (dispatcher/shard). Reports of workers go in when a worker's state changes, and
plans; dispatches and orders to swap come out. Times are seconds of the run; a run begins at EPOCH.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dispatcher.model.commands import Refused, Report, Return
from dispatcher.model.facts import Dispatched, ModelOrdered
from dispatcher.model.fleet import LoadableModel
from dispatcher.policies.clocks import Share
from dispatcher.policies.orders.slack_index import Slack
from dispatcher.policies.planning.plan import Plan
from dispatcher.policies.service import WEIGHTED_TOKENS
from dispatcher.shard.alone import EPOCH, Decided, LoneGate, report
from dispatcher.shard.proposals import plan_command
from dispatcher.shard.settings import ShardSettings
from headgate.simulator.fleet.worker import SimulatedWorker
from headgate.simulator.requests import SimRequest

NOT_COUNTED = "declined"
"""The reason of a return that counts neither as an attempt of the call nor as a failure of the worker."""


class FleetGate:
    """`rates`: service units per second of a full worker, by kind and model."""

    def __init__(
        self, workers: Sequence[SimulatedWorker], shares: Mapping[str, Share], rates: Mapping[tuple[str, str], float]
    ) -> None:
        self._gate = LoneGate(ShardSettings(slack=Slack()))
        for name, share in shares.items():
            self._gate.set_tenant(name, share)
        self._workers = {worker.name: worker for worker in workers}
        self._rates = rates
        self._reported: dict[str, tuple[str | None, bool]] = {}
        """The model of each worker, and whether it swaps, at its last report: nothing else in a report changes."""
        self._calls: dict[str, SimRequest] = {}
        self._names: dict[str, str] = {}
        """The ids of calls, by request."""
        self._dispatched: list[tuple[SimRequest, SimulatedWorker]] = []
        self._ordered: list[tuple[SimulatedWorker, str]] = []

    def arrive(self, request: SimRequest, deferred: bool, now_s: float) -> None:
        """Queue the request, or set its `rejected`. The charge is for its true length, as in gated_engine.py."""
        name, arrival = self._gate.next_name(), request.arrival
        self._calls[name], self._names[request.request_id] = request, name
        decided = self._gate.submit(
            arrival.tenant,
            WEIGHTED_TOKENS(arrival.input_tokens, max(1, arrival.output_tokens)),
            EPOCH + now_s,
            app=arrival.app or "",
            interaction=arrival.interaction or "",
            model=request.model,
            slo_class=request.slo_class,
            due_at=EPOCH + request.due_s,
            deferred=deferred,
            input_tokens=arrival.input_tokens,
        )
        self._follow(decided)
        if isinstance(decided.outcome, Refused):
            request.rejected = decided.outcome.code
            self._forget(request)

    def on_returned(self, request: SimRequest, now_s: float) -> None:
        name = self._names[request.request_id]
        attempt = self._gate.shard.state.calls[name].attempt
        self._follow(self._gate.decide(Return(name, attempt, NOT_COUNTED), now=EPOCH + now_s))

    def on_ended(self, request: SimRequest, now_s: float) -> None:
        name = self._names[request.request_id]
        outcome = "done" if request.rejected is None else "failed"
        self._follow(self._gate.finish(name, *request.charged_tokens, EPOCH + now_s, outcome=outcome))
        self._forget(request)

    def report(self, now_s: float) -> None:
        """Report the workers whose model or state has changed."""
        for worker in self._workers.values():
            now = (worker.model, worker.target is not None)
            if self._reported.get(worker.name) != now:
                self._reported[worker.name] = now
                self._follow(self._gate.decide(self._report(worker), now=EPOCH + now_s))

    def plan(self, plan: Plan, now_s: float) -> None:
        """Propose a plan. The gate follows it or not."""
        self._follow(self._gate.decide(plan_command(plan), now=EPOCH + now_s))

    def dispatches(self) -> Iterator[tuple[SimRequest, SimulatedWorker]]:
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
        usual = report(worker.name, slots, model=model, capacity_per_s=rate)
        return usual._replace(draining=worker.target is not None, models=models)

    def _follow(self, decided: Decided) -> None:
        for fact in decided.facts:
            if type(fact) is Dispatched:
                self._dispatched.append((self._calls[fact.id], self._workers[fact.worker]))
            elif type(fact) is ModelOrdered and fact.model:
                self._ordered.append((self._workers[fact.worker], fact.model))

    def _forget(self, request: SimRequest) -> None:
        del self._calls[self._names.pop(request.request_id)]
