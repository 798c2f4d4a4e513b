"""The interface of a fleet's planners, and their registry.

A planner decides which model each worker loads, and which request gets a free slot. It sees what a gate sees: the
waiting requests without their output lengths, the workers, and the mean lengths of each model's requests, as a profile
from history (QLM, section 6).

To add a planner: one class in a file of its own, registered, and one import in registry.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from dispatcher.policies.clocks import Share
from dispatcher.policies.planning.groups import DELTA
from dispatcher.policies.planning.slo import SloClasses
from headgate.simulator.fleet.profiling import ModelProfile
from headgate.simulator.fleet.worker import SimulatedWorker
from headgate.simulator.requests import SimRequest


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


Action = Dispatch | Swap | Preempt


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a planner is made from. `shares`: of tenants that have one. `profiles`: by model, of all its requests.

    `capacity_per_s`: service units per second of a full worker, by its kind and model. `delta`: QLM's size of a request
    group, in batches.
    """

    workers: Sequence[SimulatedWorker]
    classes: SloClasses
    profiles: Mapping[str, ModelProfile]
    capacity_per_s: Mapping[tuple[str, str], float]
    shares: Mapping[str, Share]
    drain_s: float
    seed: int = 0
    delta: int = DELTA


class Planner(ABC):
    """Times are seconds of the run. A request that the planner refuses has `rejected` set when `arrived` returns."""

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.workers = around.workers
        self.moves = 0
        """The moves of the annealing so far: what planning costs, in a unit that no machine changes."""

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


PlannerMaker = Callable[[Surroundings], Planner]
PLANNERS: dict[str, PlannerMaker] = {}
"""The makers of planners by name. Importing registry.py enters them."""


def planner(name: str) -> Callable[[type[Planner]], type[Planner]]:
    """Register a planner. Raises ValueError if the name is taken."""

    def enter(kind: type[Planner]) -> type[Planner]:
        if name in PLANNERS:
            raise ValueError(f"there are two planners of the name {name!r}")
        PLANNERS[name] = kind
        return kind

    return enter
