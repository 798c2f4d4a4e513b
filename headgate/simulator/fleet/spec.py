"""A fleet of workers as a value: which models each can load, how long a swap takes, and when requests are due.

`headgate simulate --fleet FILE.yaml` reads it from a file:

    kinds:                       # for each kind of worker, the models that it can load
      a100:
        chat-13b: {engine: a100-llama2-13b, swap_s: 3}
        code-8b: {engine: a100-llama3-8b-chunked, swap_s: 2, actual_swap_s: 20, slots: 64}
    workers:
      - {name: a, kind: a100, loaded: chat-13b}
      - {name: b, kind: a100, models: [code-8b], count: 2}     # b-1 and b-2, which load only this model
    classes:                     # optional; by default interactive (20 s), normal (60 s) and batch (3600 s)
      interactive: {first_token_s: 20}
      batch: {first_token_s: 3600, deferred: true}
    default_class: interactive   # optional: of requests that name none; else normal, or the laxest that is not deferred
    drain_s: 30                  # optional: how long a swap waits for running requests
    actual_drain_s: 5            # optional: how long it does wait, if planners are wrong about it
    failures:                    # optional: a worker is gone from at_s on, for for_s seconds, and then loads again
      - {worker: a, at_s: 120, for_s: 60}

`engine` is a profile of step times, by name or as a .yaml file. `slots`: requests that run at once; by default as many
as the profile allows, or one for each 500 tokens of its KV cache. `swap_s` is what planners believe until the worker
has loaded the model, and `actual_swap_s` (by default the same) what each load takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.planning.slo import DEFAULT_CLASSES, NORMAL, SloClass, SloClasses
from dispatcher.settings.strict import Strict, at_key
from dispatcher.settings.yaml_file import Document, read_document
from headgate.simulator.engines.profile import EngineProfile, load_profile

DRAIN_S = 30.0
"""A worker that swaps waits so long for its running requests; then they are returned and go on elsewhere."""
_DRAIN_S_MIN = 1.0
"""Enough for a first token: otherwise requests of two models could return each other for ever."""
_SLOT_TOKENS = 500
_SLOTS_MAX = 256


@dataclass(frozen=True, slots=True)
class Loadable:
    """A model on a kind of worker. `swap_s`: what a load in place of any other is believed to take. `slots`: requests
    that run at once. `actual_swap_s`: what a load takes; None: what is believed.

    Raises ValueError for a time that is negative or not finite, and without a slot.
    """

    profile: EngineProfile
    swap_s: float
    slots: int
    actual_swap_s: float | None = None

    def __post_init__(self) -> None:
        for name, seconds in (("swap_s", self.swap_s), ("actual_swap_s", self.load_s)):
            if not 0 <= seconds < inf:
                raise ValueError(f"{name} must be finite and not negative, not {seconds!r}")
        if self.slots < 1:
            raise ValueError(f"slots must be at least 1, not {self.slots}")

    @property
    def load_s(self) -> float:
        return self.swap_s if self.actual_swap_s is None else self.actual_swap_s


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """`models`: what it can load. `loaded`: at the start; None: nothing. Workers of one kind are equally fast."""

    name: str
    kind: str
    models: Mapping[str, Loadable]
    loaded: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerOutage:
    """A worker is gone from `at_s` for `for_s` seconds. Its running requests are returned and begin anew, elsewhere or
    later. Then it loads the model that it had, which takes a swap's time."""

    worker: str
    at_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """`classes`: when the first token of a request is due. `default_class`: of a request that names none. `drain_s`:
    how long a swap waits for running requests, as planners believe; `actual_drain_s`: as it is; None: the same.

    Raises ValueError if there is no worker, two have one name, a drain is too short, the classes are wrong, or a
    failure is of no worker or during another of the same one.
    """

    workers: Sequence[WorkerSpec]
    classes: Sequence[SloClass] = field(default=DEFAULT_CLASSES)
    default_class: str = NORMAL.name
    drain_s: float = DRAIN_S
    failures: Sequence[WorkerOutage] = ()
    actual_drain_s: float | None = None

    def __post_init__(self) -> None:
        for name, seconds in (("drain_s", self.drain_s), ("actual_drain_s", self.longest_drain_s)):
            if not _DRAIN_S_MIN <= seconds < inf:
                raise ValueError(f"{name} must be at least {_DRAIN_S_MIN:g} and finite, not {seconds!r}")
        names = [worker.name for worker in self.workers]
        if not names:
            raise ValueError("the fleet has no worker")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two workers have the name {twice!r}")
        SloClasses(self.classes).rank(self.default_class)
        for failure in self.failures:
            if failure.worker not in names:
                known = ", ".join(names)[:200]
                raise ValueError(f"a failure is of {failure.worker!r}, which is no worker; there are {known}")
        if problem := _overlap(self.failures):
            raise ValueError(problem)

    @property
    def longest_drain_s(self) -> float:
        """How long a swap does wait for running requests."""
        return self.drain_s if self.actual_drain_s is None else self.actual_drain_s

    @property
    def models(self) -> tuple[str, ...]:
        """The models that some worker can load, in the order of the workers. The first one is the default."""
        return tuple(dict.fromkeys(model for worker in self.workers for model in worker.models))


def default_slots(profile: EngineProfile) -> int:
    """Return how many requests fit at once: the profile's own limit, or one for each 500 tokens of its KV cache."""
    return profile.batch_max or max(1, min(_SLOTS_MAX, profile.pool_tokens // _SLOT_TOKENS))


def _overlap(failures: Sequence[WorkerOutage]) -> str:
    """Return a sentence about the first failure that begins during another of its worker; "" without one."""
    until: dict[str, float] = {}
    for failure in sorted(failures, key=lambda each: each.at_s):
        if failure.at_s <= until.get(failure.worker, -inf):
            return f"worker {failure.worker!r} fails at {failure.at_s:g} s, while it is already gone"
        until[failure.worker] = failure.at_s + failure.for_s
    return ""


_SWAP_S_MAX = 600.0
"""A gate orders no longer swap (dispatcher/shard/swapping.py)."""
_WORKERS_MAX = 1000

_Label = Annotated[str, Field(min_length=1, max_length=200)]
_SwapSeconds = Annotated[float, Field(ge=0, le=_SWAP_S_MAX)]
_DrainSeconds = Annotated[float, Field(ge=_DRAIN_S_MIN, le=3600.0)]


class LoadableFields(Strict):
    engine: _Label
    swap_s: _SwapSeconds
    actual_swap_s: _SwapSeconds | None = None
    slots: Annotated[int, Field(ge=1, le=100_000)] | None = None


class WorkerFields(Strict):
    """`models`: a part of its kind's; by default all. `count`: so many workers, with a number after the name."""

    name: _Label
    kind: _Label
    models: tuple[_Label, ...] | None = None
    loaded: _Label | None = None
    count: Annotated[int, Field(ge=1, le=_WORKERS_MAX)] = 1

    @property
    def names(self) -> list[str]:
        return [self.name] if self.count == 1 else [f"{self.name}-{number}" for number in range(1, self.count + 1)]


class ClassFields(Strict):
    first_token_s: Annotated[float, Field(gt=0, le=1e9)]
    deferred: bool = False


class OutageFields(Strict):
    worker: _Label
    at_s: Annotated[float, Field(ge=0, le=1e9)]
    for_s: Annotated[float, Field(gt=0, le=1e9)]


class FleetFields(Strict):
    kinds: Annotated[dict[_Label, Annotated[dict[_Label, LoadableFields], Field(min_length=1)]], Field(min_length=1)]
    workers: tuple[WorkerFields, ...]
    classes: Annotated[dict[_Label, ClassFields], Field(min_length=1)] | None = None
    default_class: _Label | None = None
    drain_s: _DrainSeconds = DRAIN_S
    actual_drain_s: _DrainSeconds | None = None
    failures: tuple[OutageFields, ...] = ()

    @model_validator(mode="after")
    def _workers_are_sound(self) -> FleetFields:
        if not self.workers:
            raise at_key("workers", "needs at least one worker")
        names = Counter(name for worker in self.workers for name in worker.names)
        if names.total() > _WORKERS_MAX:
            raise at_key("workers", f"{names.total()} workers, more than the {_WORKERS_MAX} that a fleet may have")
        if twice := [name for name, count in names.items() if count > 1]:
            raise at_key("workers", f"two workers have the name {twice[0]!r}")
        return self


def read_fleet(path: Path) -> FleetSpec:
    """Read the file. Raises ConfigurationError, which names the place in the file."""
    document = read_document(path)
    fields = document.parse(FleetFields)
    kinds = {name: _loadables(document, name, models) for name, models in fields.kinds.items()}
    workers = [
        worker for number in range(len(fields.workers)) for worker in _workers(document, fields.workers, number, kinds)
    ]
    _check_models(document, fields, workers)
    classes = _classes(document, fields)
    default = fields.default_class or SloClasses(classes).usual.name
    try:
        fleet = FleetSpec(workers, classes, default, fields.drain_s)
    except ValueError as error:
        raise document.wrong(("default_class",), str(error)) from None
    failures = tuple(WorkerOutage(each.worker, each.at_s, each.for_s) for each in fields.failures)
    try:
        return replace(fleet, failures=failures, actual_drain_s=fields.actual_drain_s)
    except ValueError as error:
        raise document.wrong(("failures",), str(error)) from None


def _loadables(document: Document, kind: str, models: dict[str, LoadableFields]) -> dict[str, Loadable]:
    found = {}
    for name, fields in models.items():
        try:
            profile = load_profile(fields.engine)
        except ConfigurationError as error:
            raise document.wrong(("kinds", kind, name, "engine"), str(error)) from None
        slots = fields.slots or default_slots(profile)
        found[name] = Loadable(profile, fields.swap_s, slots, fields.actual_swap_s)
    return found


def _workers(
    document: Document, workers: tuple[WorkerFields, ...], number: int, kinds: dict[str, dict[str, Loadable]]
) -> list[WorkerSpec]:
    fields, loc = workers[number], ("workers", number)
    if fields.kind not in kinds:
        raise document.wrong((*loc, "kind"), f"{fields.kind!r} is no kind; there are {', '.join(kinds)}")
    able = kinds[fields.kind]
    names = fields.models or tuple(able)
    for name in names:
        if name not in able:
            raise document.wrong((*loc, "models"), f"{name!r} is no model of {fields.kind!r}: {', '.join(able)}")
    if fields.loaded is not None and fields.loaded not in names:
        raise document.wrong((*loc, "loaded"), f"{fields.loaded!r} is not one of its models: {', '.join(names)}")
    models = {name: able[name] for name in names}
    return [WorkerSpec(name, fields.kind, models, fields.loaded) for name in fields.names]


def _check_models(document: Document, fields: FleetFields, workers: list[WorkerSpec]) -> None:
    able = {model for worker in workers for model in worker.models}
    for kind, models in fields.kinds.items():
        for model in models:
            if model not in able:
                raise document.wrong(("kinds", kind, model), "fits no worker: none of this kind lists it")


def _classes(document: Document, fields: FleetFields) -> tuple[SloClass, ...]:
    if fields.classes is None:
        return DEFAULT_CLASSES
    found = (SloClass(name, each.first_token_s, each.deferred) for name, each in fields.classes.items())
    try:
        return SloClasses(tuple(found)).ordered
    except ValueError as error:
        raise document.wrong(("classes",), str(error)) from None
