"""Runs a workload on a fleet under a planner: from a value (FleetRunSpec) to a value (FleetRun)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.clocks import Share
from dispatcher.policies.planning.groups import DELTA
from dispatcher.policies.planning.slo import SloClasses
from dispatcher.policies.service import WEIGHTED_TOKENS
from gpu_worker.policies.fairness.registry import make_policy
from headgate.simulator.drive import drive
from headgate.simulator.engines.interface import Observer, SimulatedEngine
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.fleet.fleet import SimulatedFleet
from headgate.simulator.fleet.measures import FleetCollector, InTime
from headgate.simulator.fleet.planners.interface import Surroundings
from headgate.simulator.fleet.planners.registry import PLANNERS
from headgate.simulator.fleet.profiling import full_rate_per_s, profiles_of
from headgate.simulator.fleet.requests import FleetRequest
from headgate.simulator.fleet.spec import FleetSpec, Loadable
from headgate.simulator.fleet.worker import EngineMaker, SimulatedWorker
from headgate.simulator.measures.collector import Collector
from headgate.simulator.requests import SimRequest
from headgate.workloads.sources import Workload


@dataclass(frozen=True, slots=True)
class FleetRunSpec:
    """`planner`: a name of the registry. `policy`: of the engines' queues. `shares`: of tenants at the gate, instead of
    the workload's weights. `delta`: the batches of a request group of planner `qlm`.

    Raises ConfigurationError for a model or class that the fleet does not have."""

    workload: Workload
    fleet: FleetSpec
    planner: str
    policy: str = "fcfs"
    shares: Mapping[str, Share] = field(default_factory=dict)
    seed: int = 0
    delta: int = DELTA

    def __post_init__(self) -> None:
        if self.planner not in PLANNERS:
            known = ", ".join(sorted(PLANNERS))
            raise ConfigurationError(f"unknown planner {self.planner[:40]!r}; there are {known}")


@dataclass(frozen=True, slots=True)
class FleetRun:
    """`total_time_s`: from 0 to the last token; throughput is over this time. `swaps`, `swapping_s`: of all workers,
    with the first load of a worker that began without a model. `moves`: of the annealing of all plans."""

    workload: str
    planner: str
    policy: str
    all: InTime
    classes: dict[str, InTime]
    tenants: dict[str, InTime]
    total_time_s: float
    requests_per_s: float
    tokens_per_s: float
    swaps: int
    swapping_s: float
    rejections: dict[str, int]
    """How many requests were refused, by reason (SimRequest.rejected)."""
    moves: int


def check_workload(workload: Workload, fleet: FleetSpec) -> None:
    """Raises ConfigurationError for a request with a model or an SLO class that the fleet does not have."""
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


def simulate_fleet(spec: FleetRunSpec) -> FleetRun:
    """Run the workload until its last request has ended."""
    fleet = spec.fleet
    workers = tuple(SimulatedWorker(worker, _engine_maker(spec)) for worker in fleet.workers)
    classes = SloClasses(fleet.classes)
    planner = PLANNERS[spec.planner](_surroundings(spec, workers, classes))
    collector = FleetCollector()
    made = _request_maker(fleet, classes)
    drive(
        spec.workload,
        SimulatedFleet(workers, planner, made, collector.ended, fleet.drain_s),
        Collector(WEIGHTED_TOKENS, 0.0),
    )
    everything, total_s = collector.all(), collector.total_time_s
    return FleetRun(
        spec.workload.name,
        spec.planner,
        spec.policy,
        everything,
        collector.by_class(),
        collector.by_tenant(),
        total_s,
        everything.served / total_s if total_s else 0.0,
        collector.tokens / total_s if total_s else 0.0,
        sum(worker.swaps for worker in workers),
        sum(worker.swapping_s for worker in workers),
        dict(sorted(collector.rejections.items())),
        planner.moves,
    )


def _engine_maker(spec: FleetRunSpec) -> EngineMaker:
    random = Random(f"{spec.seed} policy")

    def made(loadable: Loadable, observer: Observer) -> SimulatedEngine:
        policy = make_policy(spec.policy, WEIGHTED_TOKENS, random=random)
        return make_engine(loadable.profile, policy, observer=observer)

    return made


def _request_maker(fleet: FleetSpec, classes: SloClasses) -> Callable[[SimRequest, int], FleetRequest]:
    default_model = fleet.models[0]

    def made(request: SimRequest, number: int) -> FleetRequest:
        slo_class = classes.named(request.arrival.slo_class or fleet.default_class)
        model = request.arrival.model or default_model
        return FleetRequest(request, number, model, slo_class.name, slo_class.due_at(request.release_s))

    return made


def _surroundings(spec: FleetRunSpec, workers: Sequence[SimulatedWorker], classes: SloClasses) -> Surroundings:
    profiles = profiles_of(spec.workload, spec.fleet.models[0])
    rates = {}
    for worker in spec.fleet.workers:
        for model, loadable in worker.models.items():
            if model in profiles and (worker.kind, model) not in rates:
                engine = make_engine(loadable.profile, make_policy("fcfs", WEIGHTED_TOKENS))
                rates[worker.kind, model] = full_rate_per_s(engine, loadable.slots, profiles[model])
    weights = {tenant: Share(weight=weight) for tenant, weight in spec.workload.weights.items()}
    return Surroundings(
        workers, classes, profiles, rates, {**weights, **spec.shares}, spec.fleet.drain_s, spec.seed, spec.delta
    )
