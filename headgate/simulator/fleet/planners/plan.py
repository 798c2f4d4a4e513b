"""headgate's own planner: the production's plan of models (policies/planning) and the production's gate for dispatch.

The plan is made again at most every _PLAN_S seconds while requests wait, unless all workers have failed. The gate
orders its swaps, and those to models that the plan leaves out for long ((shard/swapping.py)). It also decides which
request gets a free slot, among those for the loaded models: BWFQ with due times (policies/orders/slack_index.py).

Output lengths and rates of arrivals are learned as in production, from the past of the run. The rates of full workers
and the seconds of swaps come from the profiles.

The gate (FleetGate) is the production's shard before a fleet, with queues of all tenants and dispatch to workers that
swap models. Reports of workers go in when a worker's state changes, and plans; dispatches and orders to swap come out.
Times are seconds of the run; a run begins at EPOCH.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from dispatcher.model.commands import Refused, Report, Return, Tick, Waiting
from dispatcher.model.facts import Dispatched, ModelOrdered
from dispatcher.model.fleet import LoadableModel
from dispatcher.policies.clocks import Share
from dispatcher.policies.orders.slack_index import Slack
from dispatcher.policies.planning.claims import TenantBacklog
from dispatcher.policies.planning.entitlement import HORIZON_S
from dispatcher.policies.planning.fleet import FleetWorker, paid_until
from dispatcher.policies.planning.groups import GroupedRequest, GroupKey, TenantGroups
from dispatcher.policies.planning.history import ArrivalForecast, OutputHistory
from dispatcher.policies.planning.plan import Plan, PlanSettings, make_plan
from dispatcher.policies.service import WEIGHTED_TOKENS
from dispatcher.policies.tiers import Tier
from dispatcher.shard.alone import EPOCH, Decided, LoneGate, report
from dispatcher.shard.proposals import plan_command, record_forecast
from headgate.simulator.engines.interface import output_tokens_max
from headgate.simulator.fleet.planners.interface import Action, Dispatch, Planner, Surroundings, Swap, planner
from headgate.simulator.fleet.planners.qlm import batch_s
from headgate.simulator.fleet.worker import SimulatedWorker
from headgate.simulator.gates.spec import GateSpec
from headgate.simulator.measures.announced_waits import WaitCoverage
from headgate.simulator.requests import SimRequest

_NO_REPORT = ("", False)
"""No worker has a model of this name."""
NOT_COUNTED = "declined"
"""The reason of a return that counts neither as an attempt of the call nor as a failure of the worker."""


class FleetGate:
    """`rates`: service units per second of a full worker, by kind and model."""

    def __init__(
        self, workers: Sequence[SimulatedWorker], gate: GateSpec, rates: Mapping[tuple[str, str], float]
    ) -> None:
        settings = replace(gate.shard_settings(WEIGHTED_TOKENS), slack=Slack(), heartbeat_s=0.0)
        self._gate = LoneGate(settings)
        for name, tenant in gate.tenants.items():
            self._gate.set_tenant(name, tenant.share, tier=tenant.tier or Tier.STANDARD)
        self._workers = {worker.name: worker for worker in workers}
        self._rates = rates
        self._reported: dict[str, tuple[str | None, bool]] = {}
        """The model of each worker, and whether it swaps, at its last report: nothing else in a report changes."""
        self._calls: dict[str, SimRequest] = {}
        self._names: dict[str, str] = {}
        """The ids of calls, by request."""
        self.waits = WaitCoverage()
        self.swap_charges: dict[str, float] = {}
        """What each tenant pays for swaps, in service units."""
        self.forecasts, self.begun = self._gate.shard.state.waits.forecasts, self._gate.shard.state.waits.begun
        self._announced: dict[str, tuple[Waiting, float]] = {}
        """The outcomes of the queued calls that were not dispatched yet, and when they arrived."""
        self._dispatched: list[tuple[SimRequest, SimulatedWorker]] = []
        self._ordered: list[tuple[SimulatedWorker, str]] = []

    def arrive(self, request: SimRequest, deferred: bool, now_s: float) -> None:
        """Queue the request, or set its `rejected`. The charge is for its true length, as in gates/stages.py."""
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
        if isinstance(decided.outcome, Waiting):
            self._announced[name] = decided.outcome, now_s
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
        """Report the workers with another model or state than before."""
        reported = self._reported
        for name, worker in self._workers.items():
            model, swaps = reported.get(name, _NO_REPORT)
            if worker.model != model or (worker.target is not None) is not swaps:
                reported[name] = (worker.model, worker.target is not None)
                self._follow(self._gate.decide(self._report(worker), now=EPOCH + now_s))

    def plan(self, plan: Plan, now_s: float) -> None:
        """Propose a plan. The gate follows it or not."""
        record_forecast(self._gate.shard.state, plan, EPOCH + now_s)
        self._follow(self._gate.decide(plan_command(plan), now=EPOCH + now_s))

    def tick(self, now_s: float) -> None:
        """Let the gate decide what is due now, as heartbeats do in production."""
        self._follow(self._gate.decide(Tick(), now=EPOCH + now_s))

    @property
    def has_decided(self) -> bool:
        """Whether there are dispatches or orders since the last time."""
        return bool(self._dispatched or self._ordered)

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
                name,
                0.0 if name == model else worker.swap_to_s(name),
                0,
                0.0,
                self._rates.get((worker.kind, name), 0.0),
            )
            for name in sorted(worker.models)
        )
        slots = worker.models[model].slots if model else 1
        rate = self._rates.get((worker.kind, model), 0.0)
        usual = report(worker.name, slots, model=model, capacity_per_s=rate)
        return usual._replace(draining=worker.target is not None, models=models)

    def _follow(self, decided: Decided) -> None:
        for fact in decided.facts:
            if type(fact) is Dispatched:
                self._note_wait(fact.id)
                self._dispatched.append((self._calls[fact.id], self._workers[fact.worker]))
            elif type(fact) is ModelOrdered and fact.model:
                self._ordered.append((self._workers[fact.worker], fact.model))
                for tenant in (self._calls[name].tenant for name in fact.calls):
                    self.swap_charges[tenant] = self.swap_charges.get(tenant, 0.0) + fact.service

    def _note_wait(self, name: str) -> None:
        """Compare the wait of a call that gets its first slot with the announced one."""
        if name in self._announced:
            outcome, since_s = self._announced.pop(name)
            self.waits.note(outcome.wait_s, outcome.wait_p90_s, self._gate.now - EPOCH - since_s)

    def _forget(self, request: SimRequest) -> None:
        del self._calls[self._names.pop(request.request_id)]


_PLAN_S = 2.0
_MOVES = 1000
"""The number of moves of the annealing for each plan. The production's plans may take longer."""


@planner("plan")
class ProductionPlanner(Planner):
    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._gate = FleetGate(around.workers, around.gate, around.capacity_per_s)
        self.waits, self.swap_charges = self._gate.waits, self._gate.swap_charges
        self.forecasts = self._gate.forecasts
        self._history = OutputHistory()
        self._forecast = ArrivalForecast()
        self._groups: dict[str, TenantGroups] = {}
        self._grouped: dict[str, GroupedRequest] = {}
        """The waiting requests, by name."""
        self._waiting: dict[str, int] = {}
        """The number of waiting requests of each model that has any."""
        self._keys: dict[str, GroupKey] = {}
        """The last group of each request that has arrived and not ended."""
        self._loaded_s = {worker.name: 0.0 for worker in around.workers}
        self._ordered_s: dict[str, float] = {}
        self._last_swap_s = {worker.name: 0.0 for worker in around.workers}
        self._paid_until = {worker.name: 0.0 for worker in around.workers}
        self._settings = PlanSettings(seed=around.seed, classes=around.classes)
        self._last: Plan | None = None
        self._planned_s = -inf

    def on_arrived(self, request: SimRequest, now_s: float) -> None:
        arrival, deferred = request.arrival, self.around.classes.named(request.slo_class).is_deferred
        self._wait(request)
        if not deferred:
            profile = self.around.profiles[request.model]
            service = WEIGHTED_TOKENS(arrival.input_tokens, round(profile.output_mean))
            self._forecast.record(f"{arrival.tenant}\0{request.model}", service, EPOCH + now_s, request.due_s - now_s)
        self._gate.report(now_s)
        self._gate.arrive(request, deferred, now_s)
        if request.rejected is not None:
            self._leave(request)

    def on_returned(self, request: SimRequest, now_s: float) -> None:
        self._wait(request)
        self._gate.report(now_s)
        self._gate.on_returned(request, now_s)

    def on_ended(self, request: SimRequest, now_s: float) -> None:
        key = self._keys.pop(request.request_id)
        if request.rejected is None:
            self._history.observe(key, request.arrival.output_tokens)
        self._gate.on_ended(request, now_s)

    def next_s(self) -> float:
        return self._planned_s + _PLAN_S if self._can_serve() else inf

    def actions(self, now_s: float) -> Iterator[Action]:
        self._gate.report(now_s)
        self._note_loaded(now_s)
        if now_s >= self._planned_s + _PLAN_S and self._can_serve():
            self._plan(now_s)
        if self._gate.has_decided:
            yield from self._gate_actions()

    def _can_serve(self) -> bool:
        """Return whether a worker is there for a waiting request. Otherwise no plan helps.

        A run in which the only worker of a model is gone for a day would make 43,200 of them.
        """
        return any(not worker.is_away and not self._waiting.keys().isdisjoint(worker.models) for worker in self.workers)

    def _gate_actions(self) -> Iterator[Action]:
        """Yield the gate's dispatches and orders to swap."""
        for request, worker in self._gate.dispatches():
            self._leave(request)
            yield Dispatch(request, worker)
        for worker, model in self._gate.swaps():
            yield Swap(worker, model)

    def _plan(self, now_s: float) -> None:
        """Make a plan, and propose it to the gate."""
        now, self._planned_s = EPOCH + now_s, now_s
        workers = [self._planned_worker(worker, now_s) for worker in self.workers]
        self._last = make_plan(
            self._backlogs(now), workers, now, last=self._last, moves=_MOVES, settings=self._settings
        )
        self.moves += _MOVES
        self._gate.plan(self._last, now_s)

    def _backlogs(self, now: float) -> list[TenantBacklog]:
        return [self._backlog(tenant, groups, now) for tenant, groups in self._groups.items()]

    def _backlog(self, tenant: str, groups: TenantGroups, now: float) -> TenantBacklog:
        names = {model: f"{tenant}\0{model}" for model in self.around.profiles}
        service = {model: self._forecast.service(name, now, HORIZON_S) for model, name in names.items()}
        expected = {
            model: found for model, name in names.items() if (found := self._forecast.arrivals(name, now)) is not None
        }
        share, begun = self.around.shares.get(tenant, Share()), self._gate.begun.of(tenant, now)
        return TenantBacklog(tenant, share, list(groups.figures()), service, expected, begun)

    def _planned_worker(self, worker: SimulatedWorker, now_s: float) -> FleetWorker:
        model = worker.next_model or ""
        rates = {name: rate for (kind, name), rate in self.around.capacity_per_s.items() if kind == worker.kind}
        swap_s = {name: 0.0 if name == model else worker.swap_to_s(name) for name in worker.models}
        slots = min(loadable.slots for loadable in worker.models.values())
        loaded_at = EPOCH + (now_s if worker.target is not None else self._loaded_s[worker.name])
        return FleetWorker(
            worker.name, worker.kind, model, loaded_at, swap_s, self._free_s(worker, rates, now_s), rates, slots,
            self._drain_s(worker), len(worker.running), self._swapping_s(worker, now_s), self._last_swap_s[worker.name],
            self._paid_until[worker.name],
        )  # fmt: skip

    def _swapping_s(self, worker: SimulatedWorker, now_s: float) -> float:
        """Return the rest of a swap, without its drain."""
        if worker.target is None:
            return 0.0
        is_loading = worker.model is None and worker.due_s < inf
        return max(0.01, worker.loading_left_s(now_s)) if is_loading else worker.swap_to_s(worker.target)

    def _free_s(self, worker: SimulatedWorker, rates: dict[str, float], now_s: float) -> float:
        """Return the expected seconds until the rest of a swap, and of what runs, is done."""
        if worker.target is not None and not worker.is_draining:
            return worker.loading_left_s(now_s)
        if worker.model is None or worker.model not in rates:
            return 0.0
        profile = self.around.profiles[worker.model]
        return len(worker.running) * profile.service / profile.requests / 2 / rates[worker.model]

    def _drain_s(self, worker: SimulatedWorker) -> float:
        """Return how long a drain takes: a batch of mean requests. Nothing drains if nothing runs."""
        if not worker.running or worker.model is None:
            return 0.0
        return min(self.around.drain_s, batch_s(self.around, worker, worker.model))

    def _note_loaded(self, now_s: float) -> None:
        """Note since when each worker has its model, and how long its swap took.

        An outage is no swap: a worker that was gone for an hour may swap at once when it is back.
        """
        for worker in self.workers:
            if worker.is_away:
                self._loaded_s[worker.name] = now_s
                self._ordered_s.pop(worker.name, None)
            elif worker.target is not None:
                self._loaded_s[worker.name] = now_s
                self._ordered_s.setdefault(worker.name, now_s)
            elif self._ordered_s and worker.name in self._ordered_s:
                ordered_s = self._ordered_s.pop(worker.name)
                took_s = self._last_swap_s[worker.name] = now_s - ordered_s
                self._loaded_s[worker.name] = now_s
                before = self._paid_until[worker.name]
                self._paid_until[worker.name] = paid_until(before, EPOCH + ordered_s, took_s)

    def _wait(self, request: SimRequest) -> None:
        arrival = request.arrival
        grouped = GroupedRequest(
            request.request_id,
            request.model,
            request.slo_class,
            arrival.input_tokens,
            output_tokens_max(arrival.output_tokens),
            EPOCH + request.due_s,
            request.number,
        )
        groups = self._groups.get(arrival.tenant)
        if groups is None:
            groups = self._groups[arrival.tenant] = TenantGroups(self.around.classes, self._history)
        groups.add(grouped)
        if grouped.group_key is not None:
            self._keys[request.request_id] = grouped.group_key
        self._grouped[request.request_id] = grouped
        self._waiting[request.model] = self._waiting.get(request.model, 0) + 1

    def _leave(self, request: SimRequest) -> None:
        self._waiting[request.model] -= 1
        if not self._waiting[request.model]:
            del self._waiting[request.model]
        self._groups[request.arrival.tenant].remove(self._grouped.pop(request.request_id))


@planner("no-plan")
class GateAlone(ProductionPlanner):
    """The production's gate while no planner makes plans: models take turns (policies/planning/fleet.py)."""

    def _plan(self, now_s: float) -> None:
        self._planned_s = now_s
        self._gate.tick(now_s)
