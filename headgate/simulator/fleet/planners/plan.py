"""headgate's own planner: the production's plan of models (policies/planning) and the production's gate for dispatch.

The plan is made again at most every PLAN_S seconds while requests wait. The gate orders its swaps, and those to models
that the plan leaves out for long (shard/plan/swapping.py). It also decides which request gets a free slot, among those
for the loaded models: BWFQ with due times (policies/orders/slack_index.py).

Output lengths and rates of arrivals are learned as in production, from the past of the run. The rates of full workers
and the seconds of swaps come from the profiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from dispatcher.policies.clocks import Share
from dispatcher.policies.planning.claims import TenantBacklog
from dispatcher.policies.planning.entitlement import HORIZON_S
from dispatcher.policies.planning.fleet import FleetWorker
from dispatcher.policies.planning.groups import GroupedRequest, GroupKey, TenantGroups
from dispatcher.policies.planning.history import ArrivalForecast, OutputHistory
from dispatcher.policies.planning.plan import Plan, PlanSettings, make_plan
from dispatcher.policies.service import WEIGHTED_TOKENS
from dispatcher.shard.alone import EPOCH
from headgate.simulator.engines.interface import output_tokens_max
from headgate.simulator.fleet.fleet_gate import FleetGate
from headgate.simulator.fleet.planners.interface import Action, Dispatch, Planner, Surroundings, Swap, planner
from headgate.simulator.fleet.worker import SimulatedWorker
from headgate.simulator.requests import SimRequest

PLAN_S = 2.0
MOVES = 1000
"""The number of moves of the annealing for each plan. The production's plans may take longer."""


@planner("plan")
class ProductionPlanner(Planner):
    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._gate = FleetGate(around.workers, around.shares, around.capacity_per_s)
        self._history = OutputHistory()
        self._forecast = ArrivalForecast()
        self._groups: dict[str, TenantGroups] = {}
        self._grouped: dict[str, GroupedRequest] = {}
        """The waiting requests, by name."""
        self._keys: dict[str, GroupKey] = {}
        """The last group of each request that has arrived and not ended."""
        self._loaded_s = {worker.name: 0.0 for worker in around.workers}
        self._settings = PlanSettings(seed=around.seed, classes=around.classes)
        self._last: Plan | None = None
        self._planned_s = -inf

    def on_arrived(self, request: SimRequest, now_s: float) -> None:
        arrival, deferred = request.arrival, self.around.classes.named(request.slo_class).is_deferred
        self._wait(request)
        if not deferred:
            profile = self.around.profiles[request.model]
            service = WEIGHTED_TOKENS(arrival.input_tokens, round(profile.output_mean))
            self._forecast.record(f"{arrival.tenant}\0{request.model}", service, EPOCH + now_s)
        self._gate.report(now_s)
        self._gate.arrive(request, deferred, now_s)
        if request.rejected is not None:
            self._leave(request)

    def on_returned(self, request: SimRequest, now_s: float) -> None:
        self._wait(request)
        self._gate.on_returned(request, now_s)

    def on_ended(self, request: SimRequest, now_s: float) -> None:
        key = self._keys.pop(request.request_id)
        if request.rejected is None:
            self._history.observe(key, request.arrival.output_tokens)
        self._gate.on_ended(request, now_s)

    def next_s(self) -> float:
        return self._planned_s + PLAN_S if self._grouped else inf

    def actions(self, now_s: float) -> Iterator[Action]:
        self._gate.report(now_s)
        self._note_loaded(now_s)
        if self._grouped and now_s >= self._planned_s + PLAN_S:
            self._plan(now_s)
        yield from self._gate_actions()

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
        self._last = make_plan(self._backlogs(now), workers, now, last=self._last, moves=MOVES, settings=self._settings)
        self.moves += MOVES
        self._gate.plan(self._last, now_s)

    def _backlogs(self, now: float) -> list[TenantBacklog]:
        models = tuple(self.around.profiles)
        return [
            TenantBacklog(
                tenant,
                self.around.shares.get(tenant, Share()),
                list(groups.figures()),
                {model: self._forecast.service(f"{tenant}\0{model}", now, HORIZON_S) for model in models},
            )
            for tenant, groups in self._groups.items()
        ]

    def _planned_worker(self, worker: SimulatedWorker, now_s: float) -> FleetWorker:
        model = worker.next_model or ""
        rates = {name: rate for (kind, name), rate in self.around.capacity_per_s.items() if kind == worker.kind}
        swap_s = {name: 0.0 if name == model else loadable.swap_s for name, loadable in worker.models.items()}
        slots = min(loadable.slots for loadable in worker.models.values())
        loaded_at = EPOCH + (now_s if worker.target is not None else self._loaded_s[worker.name])
        return FleetWorker(
            worker.name, worker.kind, model, loaded_at, swap_s, self._free_s(worker, rates, now_s), rates, slots
        )

    def _free_s(self, worker: SimulatedWorker, rates: dict[str, float], now_s: float) -> float:
        """Return the expected seconds until the rest of a swap, and of what runs, is done."""
        if worker.target is not None and not worker.is_draining:
            return max(0.0, worker.due_s - now_s)
        if worker.model is None or worker.model not in rates:
            return 0.0
        profile = self.around.profiles[worker.model]
        return len(worker.running) * profile.service / profile.requests / 2 / rates[worker.model]

    def _note_loaded(self, now_s: float) -> None:
        """Note since when each worker has its model."""
        for worker in self.workers:
            if worker.target is not None:
                self._loaded_s[worker.name] = now_s

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

    def _leave(self, request: SimRequest) -> None:
        self._groups[request.arrival.tenant].remove(self._grouped.pop(request.request_id))
