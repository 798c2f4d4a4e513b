"""The interface of a fleet's planners, their registry, and what a planner knows in advance.

A planner decides which model each worker loads, and which request gets a free slot. It sees what a gate sees: the
waiting requests without their output lengths, the workers, the mean lengths of each model's requests, and the rate of
each full worker. Source: QLM (SoCC 2024), section 6: token distributions come from the history of requests, and the
rate is profiled for each model and GPU.

To add a planner: one registered class, and one import in registry.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import NamedTuple

from dispatcher.policies.clocks import Share
from dispatcher.policies.planning.forecast_record import ForecastRecord
from dispatcher.policies.planning.groups import DELTA
from dispatcher.policies.planning.slo import SloClasses
from dispatcher.policies.service import WEIGHTED_TOKENS
from gpu_worker.policies.fairness.registry import make_policy
from headgate.simulator.engines.profile import EngineProfile
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.fleet.worker import SimulatedWorker
from headgate.simulator.gates.spec import GateSpec
from headgate.simulator.measures.announced_waits import WaitCoverage
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival

_WAVES = 4
_RATES_MOST = 64
"""So many measured rates are kept."""


@dataclass(slots=True)
class ModelProfile:
    """The requests of one model. Sums of tokens; `output_squares`: of the squares of the outputs."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    output_squares: int = 0

    def add(self, input_tokens: int, output_tokens: int) -> None:
        self.requests += 1
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        self.output_squares += output_tokens**2

    @property
    def input_mean(self) -> float:
        return self.input_tokens / self.requests

    @property
    def output_mean(self) -> float:
        return self.output_tokens / self.requests

    @property
    def service(self) -> float:
        """Service units of all requests."""
        return WEIGHTED_TOKENS(self.input_tokens, self.output_tokens)


def profiles_of(arrivals: Iterable[Arrival], default_model: str) -> dict[str, ModelProfile]:
    """Return the profile of each model, in the order of their first requests."""
    found: dict[str, ModelProfile] = {}
    for arrival in arrivals:
        found.setdefault(arrival.model or default_model, ModelProfile()).add(
            arrival.input_tokens, arrival.output_tokens
        )
    return found


def full_rate_per_s(engine: EngineProfile, slots: int, profile: ModelProfile) -> float:
    """Return the service units per second of a new engine with slots full of requests of the mean lengths.

    Lengths of which not even two requests fit at once are cut.
    """
    most = engine.pool_tokens // 4
    lengths = min(most, max(1, round(profile.input_mean))), min(most, max(1, round(profile.output_mean)))
    return _measure_rate(engine.model_copy(update={"fitted_on": None}), slots, *lengths)


@lru_cache(maxsize=_RATES_MOST)
def _measure_rate(profile: EngineProfile, slots: int, input_tokens: int, output_tokens: int) -> float:
    """Return it for requests of these lengths. All planners of a scene need the same rates. The profile does not say
    what it was fitted on, which has no hash."""
    engine = make_engine(profile, make_policy("fcfs", WEIGHTED_TOKENS))
    left, served = _WAVES * slots, 0
    for number in range(slots):
        engine.submit(SimRequest(str(number), Arrival(0.0, "", input_tokens, output_tokens), 0.0), 0.0)
    while served < left:
        for _ in engine.advance(inf):
            served += 1
            if served + slots <= left:
                further = Arrival(0.0, "", input_tokens, output_tokens)
                engine.submit(SimRequest(f"more {served}", further, engine.now_s), engine.now_s)
    return served * WEIGHTED_TOKENS(input_tokens, output_tokens) / engine.now_s


class Dispatch(NamedTuple):
    """Give the request a free slot of the worker, which has its model loaded."""

    request: SimRequest
    worker: SimulatedWorker


class Swap(NamedTuple):
    """Drain the worker, and load the model."""

    worker: SimulatedWorker
    model: str


class Preempt(NamedTuple):
    """Return all running requests of the worker at once; it keeps its model."""

    worker: SimulatedWorker


class Refuse(NamedTuple):
    """End a waiting request without serving it. `reason`: its `rejected`."""

    request: SimRequest
    reason: str


Action = Dispatch | Swap | Preempt | Refuse


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a planner is made from. `gate`: its order and the tenants' shares. `profiles`: of all requests of a model.

    `capacity_per_s`: service units per second of a full worker, by its kind and model. `delta`: QLM's size of a request
    group, in batches.
    """

    workers: Sequence[SimulatedWorker]
    classes: SloClasses
    profiles: Mapping[str, ModelProfile]
    capacity_per_s: Mapping[tuple[str, str], float]
    gate: GateSpec
    drain_s: float
    seed: int = 0
    delta: int = DELTA

    @property
    def shares(self) -> dict[str, Share]:
        """The shares of the tenants that have one."""
        return {name: tenant.share for name, tenant in self.gate.tenants.items()}


class Planner(ABC):
    """Times are seconds of the run. A request that the planner refuses has `rejected` set when `arrived` returns."""

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.workers = around.workers
        self.moves = 0
        """The moves of the annealing so far: what planning costs, in a unit that no machine changes."""
        self.waits: WaitCoverage | None = None
        """The announced waits; None for a planner without a gate."""
        self.forecasts: ForecastRecord | None = None
        """What the plans forecast, and what followed; None for a planner that forecasts nothing."""
        self.swap_charges: dict[str, float] = {}
        """What each tenant pays for swaps, in service units."""

    @abstractmethod
    def on_arrived(self, request: SimRequest, now_s: float) -> None:
        """Queue a request."""

    @abstractmethod
    def on_returned(self, request: SimRequest, now_s: float) -> None:
        """Queue a request again, which a swap gave up."""

    @abstractmethod
    def actions(self, now_s: float) -> Iterator[Action]:
        """Yield what to do now. Each action is carried out before the next one is requested."""

    def on_ended(self, request: SimRequest, now_s: float) -> None:
        """Learn that a dispatched request has ended, served or refused by its engine."""

    def next_s(self) -> float:
        """Return when `actions` is wanted although nothing happens; infinity if never."""
        return inf


_PlannerMaker = Callable[[Surroundings], Planner]
PLANNERS: dict[str, _PlannerMaker] = {}
"""The makers of planners by name. Importing registry.py enters them."""


def planner(name: str) -> Callable[[type[Planner]], type[Planner]]:
    """Register a planner. Raises ValueError if the name is taken."""

    def enter(kind: type[Planner]) -> type[Planner]:
        if name in PLANNERS:
            raise ValueError(f"there are two planners of the name {name!r}")
        PLANNERS[name] = kind
        return kind

    return enter
