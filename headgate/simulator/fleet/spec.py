"""A fleet of workers as a value: which models each can load, how long a swap takes, and when requests are due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from dispatcher.policies.planning.slo import DEFAULT_CLASSES, NORMAL, SloClass, SloClasses
from headgate.simulator.engines.profile import EngineProfile

DRAIN_S = 30.0
"""A worker that swaps waits so long for its running requests; then they are returned and go on elsewhere."""
DRAIN_S_MIN = 1.0
"""Enough for a first token: otherwise requests of two models could return each other for ever."""
SLOT_TOKENS = 500
SLOTS_MAX = 256


@dataclass(frozen=True, slots=True)
class Loadable:
    """A model on a kind of worker. `swap_s`: to load it in place of any other. `slots`: requests that run at once."""

    profile: EngineProfile
    swap_s: float
    slots: int


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """`models`: what it can load. `loaded`: at the start; None: nothing. Workers of one kind are equally fast."""

    name: str
    kind: str
    models: Mapping[str, Loadable]
    loaded: str | None = None


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """`classes`: when the first token of a request is due. `default_class`: of a request that names none.

    Raises ValueError if there is no worker, two have one name, drain_s is too short, or the classes are wrong.
    """

    workers: Sequence[WorkerSpec]
    classes: Sequence[SloClass] = field(default=DEFAULT_CLASSES)
    default_class: str = NORMAL.name
    drain_s: float = DRAIN_S

    def __post_init__(self) -> None:
        if not DRAIN_S_MIN <= self.drain_s < inf:
            raise ValueError(f"drain_s must be at least {DRAIN_S_MIN:g} and finite, not {self.drain_s!r}")
        names = [worker.name for worker in self.workers]
        if not names:
            raise ValueError("the fleet has no worker")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two workers have the name {twice!r}")
        SloClasses(self.classes).rank(self.default_class)

    @property
    def models(self) -> tuple[str, ...]:
        """The models that some worker can load, in the order of the workers. The first one is the default."""
        return tuple(dict.fromkeys(model for worker in self.workers for model in worker.models))


def default_slots(profile: EngineProfile) -> int:
    """Return how many requests fit at once: the profile's own limit, or one for each 500 tokens of its KV cache."""
    return profile.batch_max or max(1, min(SLOTS_MAX, profile.pool_tokens // SLOT_TOKENS))
