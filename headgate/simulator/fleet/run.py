"""Runs a workload on a fleet under a planner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.clocks import Share
from dispatcher.policies.planning.slo import SloClasses
from dispatcher.policies.service import WEIGHTED_TOKENS
from gpu_worker.policies.fairness.registry import make_policy
from headgate.simulator.drive import drive
from headgate.simulator.engines.interface import Observer, SimulatedEngine
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.fleet.fleet import SimulatedFleet
from headgate.simulator.fleet.planners.interface import Surroundings
from headgate.simulator.fleet.planners.registry import PLANNERS
from headgate.simulator.fleet.profiling import full_rate_per_s, profiles_of
from headgate.simulator.fleet.spec import FleetSpec, Loadable
from headgate.simulator.fleet.worker import EngineMaker, SimulatedWorker
from headgate.simulator.measures.collector import Collector
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


def simulate_fleet(spec: RunSpec) -> Run:
    """Run the workload until its last request has ended. Raises KeyError for an unknown planner."""
    fleet = _fleet_of(spec)
    workers = tuple(SimulatedWorker(worker, _engine_maker(spec)) for worker in fleet.workers)
    classes = SloClasses(fleet.classes)
    planner = PLANNERS[spec.planner](_surroundings(spec, workers, classes))
    collector = Collector(WEIGHTED_TOKENS, 0.0)
    drive(spec.workload, SimulatedFleet(workers, planner, _make_place(fleet, classes), fleet.drain_s), collector)
    return replace(
        run_of(spec, collector, decisions=0),
        swaps=sum(worker.swaps for worker in workers),
        swapping_s=sum(worker.swapping_s for worker in workers),
        moves=planner.moves,
    )


def _fleet_of(spec: RunSpec) -> FleetSpec:
    if isinstance(spec.engines, FleetSpec):
        return spec.engines
    raise TypeError("the run is of one engine")


def _engine_maker(spec: RunSpec) -> EngineMaker:
    random = Random(f"{spec.seed} policy")

    def made(loadable: Loadable, observer: Observer) -> SimulatedEngine:
        policy = make_policy(spec.policy, WEIGHTED_TOKENS, random=random)
        return make_engine(loadable.profile, policy, observer=observer)

    return made


def _make_place(fleet: FleetSpec, classes: SloClasses) -> Callable[[SimRequest], None]:
    """Return what sets the model, the SLO class and the due time of a request."""
    default_model = fleet.models[0]

    def place(request: SimRequest) -> None:
        slo_class = classes.named(request.arrival.slo_class or fleet.default_class)
        request.model, request.slo_class = request.arrival.model or default_model, slo_class.name
        request.due_s = slo_class.due_at(request.release_s)

    return place


def _surroundings(spec: RunSpec, workers: Sequence[SimulatedWorker], classes: SloClasses) -> Surroundings:
    fleet = _fleet_of(spec)
    profiles = profiles_of(spec.workload, fleet.models[0])
    rates = {}
    for worker in fleet.workers:
        for model, loadable in worker.models.items():
            if model in profiles and (worker.kind, model) not in rates:
                engine = make_engine(loadable.profile, make_policy("fcfs", WEIGHTED_TOKENS))
                rates[worker.kind, model] = full_rate_per_s(engine, loadable.slots, profiles[model])
    weights = {**spec.workload.weights, **spec.weights}
    shares = {tenant: Share(weight=weight) for tenant, weight in weights.items()}
    return Surroundings(workers, classes, profiles, rates, shares, fleet.drain_s, spec.seed, spec.delta)
