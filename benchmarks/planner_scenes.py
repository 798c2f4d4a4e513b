"""Scenes of planner_dominance.py: fleets and workloads to which no planner was tuned, and random ones by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log
from random import Random

from dispatcher.policies.planning.slo import SloClass
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.fleet.spec import FleetSpec, Loadable, WorkerSpec
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload

FAST, SLOW = "a100-llama3-8b-chunked", "a10g-llama2-7b"
_UNCHUNKED = {"chunk_tokens": None, "steps_between_admissions": 10}
_CLASSES = (SloClass("interactive", 20.0), SloClass("normal", 60.0), SloClass("batch", 3600.0, is_deferred=True))
_SLOTS = 32


@dataclass(frozen=True, slots=True)
class Scene:
    name: str
    fleet: FleetSpec
    workload: ListWorkload


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests of one tenant and model, `per_s` in the mean, between two times. `even`: with equal gaps.
    `outputs`: mean tokens."""

    tenant: str
    model: str
    per_s: float
    end_s: float
    start_s: float = 0.0
    slo_class: str = "interactive"
    outputs: float = 200.0
    even: bool = False


def fleet(
    workers: int,
    swap_s: dict[str, float],
    *,
    loaded: Sequence[str] = (),
    kinds: Sequence[str] = (FAST,),
    classes: Sequence[SloClass] = _CLASSES,
) -> FleetSpec:
    """Return workers that can load every model, of the kinds in turn, with the models in turn or those of `loaded`."""
    names = loaded or list(swap_s)
    specs = []
    for at in range(workers):
        kind = kinds[at % len(kinds)]
        profile = load_profile(kind)
        if kind == FAST:
            profile = profile.model_copy(update=_UNCHUNKED)
        able = {name: Loadable(profile, seconds, profile.batch_max or _SLOTS) for name, seconds in swap_s.items()}
        specs.append(WorkerSpec(f"w{at}", kind, able, names[at % len(names)]))
    return FleetSpec(specs, classes, "interactive", 30.0)


def scene(name: str, spec: FleetSpec, streams: Sequence[Stream], seed: int = 0) -> Scene:
    """Return the scene. Its arrivals follow from its name and the seed."""
    drawn = f"{name} {seed}" if seed else name
    arrivals = [each for at, stream in enumerate(streams) for each in _arrivals(stream, Random(f"{drawn} {at}"))]
    return Scene(name, spec, ListWorkload(name, arrivals))


def _arrivals(stream: Stream, random: Random) -> list[Arrival]:
    found: list[Arrival] = []
    at_s = stream.start_s
    while True:
        at_s += 1 / stream.per_s if stream.even else random.expovariate(stream.per_s)
        if at_s >= stream.end_s:
            return found
        lengths = _length(random, 200.0), _length(random, stream.outputs)
        found.append(Arrival(at_s, stream.tenant, *lengths, model=stream.model, slo_class=stream.slo_class))


def _length(random: Random, mean: float) -> int:
    return max(4, min(1000, round(exp(random.gauss(log(mean) - 0.25, 0.7)))))


def named_scenes(seed: int = 0) -> list[Scene]:
    """Return the scenes that outsiders described, with the arrivals of the seed."""
    five = (SloClass("interactive", 5.0), *_CLASSES[1:])
    seven = {f"m{at}": 5.0 for at in range(7)}
    small = {"big": 5.0} | {f"s{at}": 2.0 for at in range(50)}
    short = [Stream(f"rare{at}", f"m{at}", 2 / 6 / 6, 300, even=True, outputs=20) for at in range(1, 7)]
    rare = [Stream("hot-a", "a", 5, 200), Stream("hot-b", "b", 5, 200)]
    described = [
        (
            "two_models",
            fleet(2, {"a": 5.0, "b": 5.0, "c": 5.0}, loaded=("a", "a")),
            [
                Stream("victim", "a", 8, 300),
                Stream("adversary", "b", 1 / 6, 300, even=True, outputs=20),
                Stream("adversary", "c", 1 / 6, 300, 3, even=True, outputs=20),
            ],
        ),
        ("rare_short", fleet(2, {"a": 3.0, "b": 3.0, "rare": 3.0}), [*rare, Stream("rare", "rare", 0.02, 75, 20)]),
        ("rare_long", fleet(2, {"a": 3.0, "b": 3.0, "rare": 3.0}),
              [replace(each, end_s=500) for each in rare] + [Stream("rare", "rare", 0.005, 450, 20, even=True)]),
        ("long_swap", fleet(2, {"a": 2.0, "b": 2.0, "slow": 60.0}),
              [Stream("a", "a", 3, 300), Stream("b", "b", 3, 300), Stream("slow", "slow", 0.3, 300)]),
        ("deferred", fleet(1, {"chat": 5.0, "night": 5.0},
                                classes=(*_CLASSES[:2], SloClass("batch", 300.0, is_deferred=True))),
              [Stream("chat", "chat", 7, 300), Stream("night", "night", 100, 8, slo_class="batch", outputs=100)]),
        ("seven_models", fleet(2, seven, loaded=("m0", "m0")), [Stream("victim", "m0", 8, 300), *short]),
        ("four_workers", fleet(4, seven, loaded=("m0",)), [Stream("victim", "m0", 18, 200),
              *(Stream("adversary", f"m{at}", 1 / 18, 200, outputs=20) for at in range(1, 7))]),
        ("fifty_small", fleet(4, small, loaded=("big",)), [Stream("big", "big", 15, 200),
              *(Stream("small", f"s{at}", 0.02, 200, outputs=50) for at in range(50))]),
        ("short_due", fleet(3, {f"m{at}": 2.0 for at in range(4)}, classes=five),
              [Stream(f"t{at}", f"m{at}", 3, 200) for at in range(4)]),
        ("unlike_flood", fleet(4, {f"m{at}": 5.0 for at in range(3)}, kinds=(FAST, SLOW)),
              [Stream("flood", "m0", 30, 150), Stream("t1", "m1", 3, 150), Stream("t2", "m2", 1, 150)]),
        ("overload", fleet(3, {f"m{at}": 3.0 for at in range(4)}),
              [Stream(f"t{at}", f"m{at}", 14, 150) for at in range(4)]),
        ("swap_40", fleet(3, {f"m{at}": 40.0 for at in range(4)}),
              [Stream(f"t{at}", f"m{at}", 2.5, 300) for at in range(4)]),
    ]  # fmt: skip
    return [scene(*each, seed) for each in described]


def random_scene(seed: int) -> Scene:
    """Return a fleet of 1 to 4 workers and up to 6 models, with 2 to 4 tenants, of a load between 0.1 and 1.5."""
    random = Random(f"dominance {seed}")
    workers, models = random.randint(1, 4), random.randint(2, 6)
    swap_s = {f"m{at}": random.choice([0.5, 2.0, 5.0, 15.0, 40.0]) for at in range(models)}
    classes = (SloClass("interactive", random.choice([5.0, 20.0])), *_CLASSES[1:])
    tenants = random.randint(2, 4)
    load = workers * random.uniform(0.1, 1.5) * 10
    streams = []
    for at in range(tenants):
        wanted = random.sample(list(swap_s), random.randint(1, min(2, models)))
        part = random.choice([0.02, 0.2, 1.0, 3.0])
        slo_class = random.choice(["interactive", "interactive", "normal"])
        for model in wanted:
            per_s = max(0.05, load * part / tenants / len(wanted) / 1.5)
            streams.append(
                Stream(f"t{at}", model, per_s, 90.0, slo_class=slo_class, outputs=random.choice([20.0, 200.0]))
            )
    return scene(f"random {seed}", fleet(workers, swap_s, classes=classes), streams)
