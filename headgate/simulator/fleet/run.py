"""Runs a workload on a fleet under a planner: the workers and the planner in virtual time.

    drive ──▶ Fleet ──arrived──▶ planner ──dispatch, swap──▶ worker ──▶ engine
                ▲                   ▲                          │
                └───────────────────┴── ended, returned ───────┘

Engines run one after the other, each at most to the next event of another: so requests end in the order of time, and
the planner decides on the state of that moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf, nextafter
from random import Random

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.planning.slo import SloClasses
from dispatcher.policies.service import WEIGHTED_TOKENS
from gpu_worker.policies.fairness.interface import Applications
from gpu_worker.policies.fairness.registry import make_policy
from headgate.simulator.drive import drive
from headgate.simulator.engines.fitted_range import RangeNotes, RangeWatch
from headgate.simulator.engines.interface import Jitter, Observer, SimulatedEngine
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.fleet.planners.interface import (
    Dispatch,
    ModelProfile,
    Planner,
    Preempt,
    Refuse,
    Surroundings,
    full_rate_per_s,
    profiles_of,
)
from headgate.simulator.fleet.planners.registry import PLANNERS
from headgate.simulator.fleet.spec import FleetSpec, Loadable, WorkerOutage
from headgate.simulator.fleet.worker import EngineMaker, SimulatedWorker
from headgate.simulator.gates.spec import GateSpec
from headgate.simulator.measures.collector import Collector, FleetCollector
from headgate.simulator.requests import SimRequest
from headgate.simulator.run import Run, RunSpec, run_of


def check_fleet_run(spec: RunSpec) -> None:
    """Raises ConfigurationError for an unknown planner, or for a model or an SLO class that the fleet does not have."""
    workload, fleet = spec.workload, _fleet_of(spec)
    if spec.planner not in PLANNERS:
        known = ", ".join(sorted(PLANNERS))
        raise ConfigurationError(f"unknown planner {spec.planner[:40]!r}; there are {known}")
    models, classes = set(fleet.models), {each.name for each in fleet.classes}
    for arrival in workload:
        if arrival.model is not None and arrival.model not in models:
            known = ", ".join(fleet.models)
            raise ConfigurationError(
                f"{workload.name}: tenant {arrival.tenant[:40]!r} requests the model {arrival.model[:40]!r}, which no "
                f"worker of the fleet can load; it has {known}"
            )
        if arrival.slo_class is not None and arrival.slo_class not in classes:
            known = ", ".join(each.name for each in fleet.classes)
            raise ConfigurationError(
                f"{workload.name}: tenant {arrival.tenant[:40]!r} requests the SLO class {arrival.slo_class[:40]!r}; "
                f"the fleet has {known}"
            )


def most_service_per_s(spec: RunSpec) -> float:
    """Return the service units per second if every worker is full all the time, each with its fastest model."""
    fleet = _fleet_of(spec)
    rates = _full_rates(fleet, profiles_of(spec.workload, fleet.models[0]))
    return sum(
        max((rates[worker.kind, model] for model in worker.models if (worker.kind, model) in rates), default=0.0)
        for worker in fleet.workers
    )


def simulate_fleet(spec: RunSpec, collector: Collector | None = None) -> Run:
    """Run the workload until its last request has ended. `collector`: used instead of a new one. Raises KeyError for an
    unknown planner."""
    fleet = _fleet_of(spec)
    used = _range_notes(fleet)
    workers = tuple(SimulatedWorker(worker, _engine_maker(spec, used)) for worker in fleet.workers)
    classes = SloClasses(fleet.classes)
    planner = PLANNERS[spec.planner](_surroundings(spec, workers, classes))
    collector = collector or FleetCollector(WEIGHTED_TOKENS, spec.workload.last_arrival_s)
    place = make_place(fleet, classes, spec.gate)
    drive(spec.workload, SimulatedFleet(workers, planner, place, fleet.longest_drain_s, fleet.failures), collector)
    return replace(
        run_of(
            spec,
            collector,
            decisions=0,
            outside_fit=tuple(f"{name}: {said}" for name, notes in used.items() for said in notes.sentences()),
        ),
        last_arrival_s=spec.workload.last_arrival_s,
        loads=_loads_of(workers),
        swapping_s=sum(worker.swapping_s for worker in workers),
        moves=planner.moves,
        waits=planner.waits,
        forecasts={} if planner.forecasts is None else dict(sorted(planner.forecasts.tenants.items())),
        swap_charges=dict(sorted(planner.swap_charges.items())),
    )


def _loads_of(workers: Sequence[SimulatedWorker]) -> dict[str, int]:
    whole: Counter[str] = Counter()
    for worker in workers:
        whole.update(worker.loads)
    return dict(sorted(whole.items()))


def _fleet_of(spec: RunSpec) -> FleetSpec:
    if isinstance(spec.engines, FleetSpec):
        return spec.engines
    raise TypeError("the run is of one engine")


def _range_notes(fleet: FleetSpec) -> dict[str, RangeNotes]:
    """Return notes for each profile that was fitted to a log, by its name. All workers that use it share them."""
    profiles = [loadable.profile for worker in fleet.workers for loadable in worker.models.values()]
    return {profile.name: RangeNotes(profile.fitted_on) for profile in profiles if profile.fitted_on is not None}


def _engine_maker(spec: RunSpec, used: Mapping[str, RangeNotes]) -> EngineMaker:
    random = Random(f"{spec.seed} policy")
    jitter = Jitter(Random(f"{spec.seed} steps"), spec.jitter) if spec.jitter else None

    def made(loadable: Loadable, observer: Observer) -> SimulatedEngine | RangeWatch:
        labels = Applications(as_labelled=True)
        policy = make_policy(spec.policy, WEIGHTED_TOKENS, random=random, applications=labels)
        engine = make_engine(loadable.profile, policy, observer=observer, jitter=jitter)
        notes = used.get(loadable.profile.name)
        return engine if notes is None else RangeWatch(engine, notes)

    return made


def make_place(fleet: FleetSpec, classes: SloClasses, gate: GateSpec | None) -> Callable[[SimRequest], None]:
    """Return what sets the model, the SLO class and the due time of a request."""
    default_model = fleet.models[0]
    of_tenants = {} if gate is None else {name: each.slo_class for name, each in gate.tenants.items() if each.slo_class}

    def place(request: SimRequest) -> None:
        arrival = request.arrival
        slo_class = classes.named(arrival.slo_class or of_tenants.get(arrival.tenant, fleet.default_class))
        request.model, request.slo_class = request.arrival.model or default_model, slo_class.name
        request.due_s = slo_class.due_at(request.release_s)

    return place


def _surroundings(spec: RunSpec, workers: Sequence[SimulatedWorker], classes: SloClasses) -> Surroundings:
    fleet = _fleet_of(spec)
    profiles = profiles_of(spec.workload, fleet.models[0])
    rates = _full_rates(fleet, profiles)
    gate = (spec.gate or GateSpec(1)).completed({**spec.workload.weights, **spec.weights}, spec.workload.tiers)
    return Surroundings(workers, classes, profiles, rates, gate, fleet.drain_s, spec.seed, spec.delta)


def _full_rates(fleet: FleetSpec, profiles: Mapping[str, ModelProfile]) -> dict[tuple[str, str], float]:
    """Return the service units per second of a full worker, by its kind and each model that is requested."""
    rates = dict[tuple[str, str], float]()
    for worker in fleet.workers:
        for model, loadable in worker.models.items():
            if model in profiles and (worker.kind, model) not in rates:
                rates[worker.kind, model] = full_rate_per_s(loadable.profile, loadable.slots, profiles[model])
    return rates


class SimulatedFleet:
    """drive.EngineLike. `place`: sets the model, the SLO class and the due time of a request."""

    def __init__(
        self,
        workers: Sequence[SimulatedWorker],
        planner: Planner,
        place: Callable[[SimRequest], None],
        drain_s: float,
        failures: Sequence[WorkerOutage] = (),
    ) -> None:
        self.now_s = 0.0
        self._failures = sorted(failures, key=lambda failure: failure.at_s, reverse=True)
        """The failures that are still to come, the next one last."""
        self._workers = workers
        self._planner = planner
        self._place = place
        self._drain_s = drain_s
        self._numbered = self._open = 0
        self._ended: list[SimRequest] = []
        self._next_s = [worker.next_s() for worker in workers]

    def submit(self, request: SimRequest, at_s: float) -> bool:
        self.now_s = at_s
        request.number = self._numbered
        self._place(request)
        self._numbered += 1
        self._open += 1
        self._planner.on_arrived(request, at_s)
        if request.rejected is None:
            self._act()
            return True
        self._open -= 1
        return False

    def advance(self, until_s: float) -> list[SimRequest]:
        """Raises RuntimeError if requests wait and nothing will ever happen: an error of the planner."""
        while self._open and not self._ended:
            failure_s = self._failures[-1].at_s if self._failures else inf
            timer_s = min(self._planner.next_s(), failure_s)
            for worker in self._workers:
                if worker.due_s < timer_s:
                    timer_s = worker.due_s
            first, soonest_s, other_s = self._soonest()
            if until_s <= min(timer_s, soonest_s):
                if until_s == inf:
                    raise RuntimeError(f"{self._open} requests wait, and the planner does nothing")
                self.now_s = until_s
                break
            if timer_s <= soonest_s:
                self.now_s = max(self.now_s, timer_s)
                self._act()
            else:
                self._run(first, max(min(until_s, timer_s, other_s), nextafter(soonest_s, inf)))
        ended, self._ended = self._ended, []
        return ended

    def _soonest(self) -> tuple[int, float, float]:
        """Return the number of the worker with the next event, its time, and that of the next event of another."""
        first, soonest_s, other_s = 0, self._next_s[0], inf
        for number, next_s in enumerate(self._next_s):
            if next_s < soonest_s:
                first, soonest_s, other_s = number, next_s, soonest_s
            elif next_s < other_s and number:
                other_s = next_s
        return first, soonest_s, other_s

    def _run(self, number: int, until_s: float) -> None:
        worker = self._workers[number]
        ended = worker.advance(until_s)
        self._next_s[number] = worker.next_s()
        if ended:
            self.now_s = max(self.now_s, worker.now_s)
            self._finish(ended)
            self._act()

    def _act(self) -> None:
        """Take due steps of swaps, then do what the planner says, until nothing changes."""
        while self._failures and self._failures[-1].at_s <= self.now_s:
            self._fail(self._failures.pop())
        changed = True
        while changed:
            changed = False
            for number, worker in enumerate(self._workers):
                if worker.target is not None:
                    self._settle(number, worker)
            for action in self._planner.actions(self.now_s):
                changed = True
                if isinstance(action, Dispatch):
                    self._dispatch(action.request, action.worker)
                elif isinstance(action, Preempt):
                    self._preempt(action.worker)
                elif isinstance(action, Refuse):
                    action.request.rejected = action.reason
                    self._finish([action.request])
                else:
                    action.worker.swap(action.model, self.now_s, self._drain_s)

    def _fail(self, failure: WorkerOutage) -> None:
        number, worker = next(each for each in enumerate(self._workers) if each[1].name == failure.worker)
        self._finish(worker.advance(self.now_s))
        self._return(worker.fail(failure.at_s + failure.for_s))
        self._next_s[number] = worker.next_s()

    def _preempt(self, worker: SimulatedWorker) -> None:
        self._finish(worker.advance(self.now_s))
        self._return(worker.evict())
        self._next_s[self._workers.index(worker)] = worker.next_s()

    def _settle(self, number: int, worker: SimulatedWorker) -> None:
        if worker.is_draining:
            self._finish(worker.advance(self.now_s))
        self._return(worker.settle(self.now_s))
        self._next_s[number] = worker.next_s()

    def _return(self, requests: Sequence[SimRequest]) -> None:
        for request in requests:
            if request.rejected is None:
                self._planner.on_returned(request, self.now_s)
            else:
                self._finish([request])

    def _dispatch(self, request: SimRequest, worker: SimulatedWorker) -> None:
        if worker.is_away:  # it failed after the decision, at the same moment
            self._planner.on_returned(request, self.now_s)
            return
        self._finish(worker.advance(self.now_s))
        if not worker.dispatch(request, self.now_s):
            self._finish([request])
        self._next_s[self._workers.index(worker)] = worker.next_s()

    def _finish(self, ended: Sequence[SimRequest]) -> None:
        for request in ended:
            if request.rejected is None:
                request.end()
            self._planner.on_ended(request, self.now_s)
            self._open -= 1
            self._ended.append(request)
