"""Scenes of planner_dominance.py: fleets and workloads to which no planner was tuned, and random ones by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import exp, log
from random import Random
from typing import Any

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


def scene(
    name: str,
    spec: FleetSpec,
    streams: Sequence[Stream],
    seed: int = 0,
    weights: Mapping[str, float] | None = None,
) -> Scene:
    """Return the scene. Its arrivals follow from its name and the seed."""
    drawn = f"{name} {seed}" if seed else name
    arrivals = [each for at, stream in enumerate(streams) for each in _arrivals(stream, Random(f"{drawn} {at}"))]
    return Scene(name, spec, ListWorkload(name, arrivals, weights=weights))


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


def reported_scenes(seed: int = 0) -> list[Scene]:
    """Return scenes of public reports about models that take turns on GPUs. They were written before a look at the
    planner, and no figure of them was changed after their first run. Each has its report beside it."""
    ten = (SloClass("interactive", 10.0), *_CLASSES[1:])
    swept = {"a": 5.0, "b": 5.0, "c": 5.0} | {f"d{at}": 5.0 for at in range(12)}
    tried = {f"big{at}": 25.0 for at in range(4)} | {"small": 4.0}
    sessions = {f"x{at}": 3.0 for at in range(16)}
    described = [
        # llama-swap issue 612 and pull request 611: requests in the order A B A A C A B C on one GPU, "most of the
        # time is spent swapping", and C must not starve.
        ("agents", fleet(1, {"plan": 8.0, "explore": 8.0, "code": 8.0}),
              [Stream("orchestrator", "plan", 0.8, 300), Stream("explorers", "explore", 0.4, 300, outputs=100),
               Stream("coder", "code", 0.1, 300, outputs=600)]),
        # llama-swap issue 588: a batch of 20 long jobs; one chat request swaps the model after the first of them.
        ("images", fleet(1, {"image": 10.0, "chat": 10.0}),
              [Stream("images", "image", 20, 1, slo_class="normal", outputs=1000),
               Stream("images", "image", 20, 151, 150, "normal", 1000), Stream("chat", "chat", 0.15, 300)]),
        # d-inference issue 789: five models on three places; models with 1.1 % of the requests cause 71 % of the loads.
        ("five_on_three", fleet(3, {f"m{at}": 30.0 for at in range(5)}),
              [Stream("m0", "m0", 4, 600), Stream("m1", "m1", 3, 600), Stream("m2", "m2", 2, 600),
               Stream("m3", "m3", 0.06, 600), Stream("m4", "m4", 0.04, 600)]),
        # kserve/modelmesh pull request 49: once a day each of many models is called; that evicts what is in use.
        ("daily_sweep", fleet(4, swept, classes=ten),
              [*(Stream(name, name, 4, 300) for name in "abc"),
               *(Stream("sweep", f"d{at}", 0.15, 130, 110, "normal", 50, even=True) for at in range(12))]),
        # ollama issue 10948: two models in turn, each call replaces the other one, although both are to be kept.
        ("turns", fleet(1, {"a": 2.0, "b": 2.0}, classes=ten),
              [Stream("a", "a", 0.5, 300, even=True), Stream("b", "b", 0.5, 301, 1, even=True)]),
        # llm-d issue 1973 and vllm pull request 48337: with sleep a switch of 0.6B takes 1.5 s and of 8B 12.8 s, and
        # 30 to 100 s for a model that does not sleep.
        ("asleep", fleet(2, {"tiny": 1.5, "mid": 12.8, "cold": 60.0}),
              [Stream("tiny", "tiny", 3, 400, outputs=50), Stream("mid", "mid", 3, 400),
               Stream("cold", "cold", 0.05, 400, 60)]),
        # triton-inference-server issues 3583 and 7279: each client loads the models that it needs, works, and goes on
        # to the next ones; tens of models, and room for few.
        ("sessions", fleet(3, sessions),
              [Stream(f"client{at % 4}", f"x{at}", 1.5, 30.0 * (at // 4) * 2 + 60 + 7 * (at % 4),
                      30.0 * (at // 4) * 2 + 7 * (at % 4)) for at in range(16)]),
        # LocalAI issues 6068 and 9375: large models are tried in turn while a small one must stay in memory.
        ("small_stays", fleet(2, tried, loaded=("small", "big0"), classes=ten),
              [Stream("assistant", "small", 0.5, 400, outputs=50),
               *(Stream("tester", f"big{at}", 0.5, 100.0 * at + 80, 100.0 * at, "normal") for at in range(4))]),
    ]  # fmt: skip
    return [scene(*each, seed) for each in described]


@dataclass(frozen=True, slots=True)
class SceneShape:
    """A random scene as numbers. `name`: seeds its arrivals. `kinds`: of each worker. `swap_s`: of each model on all
    workers. `due_s`: of the class interactive. `weights`: of each tenant."""

    name: str
    kinds: tuple[str, ...]
    swap_s: dict[str, float]
    due_s: float
    weights: dict[str, float]
    streams: tuple[Stream, ...]

    def scene(self, draw: int = 0) -> Scene:
        """Return the scene with these arrivals: the streams are the same in all draws. Raises ValueError if no request
        arrives."""
        classes = (SloClass("interactive", self.due_s), *_CLASSES[1:])
        spec = fleet(len(self.kinds), self.swap_s, kinds=self.kinds, classes=classes)
        made = scene(self.name, spec, self.streams, draw, self.weights)
        if not made.workload.requests:
            raise ValueError(f"no request arrives in {self.name}")
        return made

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> SceneShape:
        streams = tuple(Stream(**each) for each in found["streams"])
        return cls(**{**found, "kinds": tuple(found["kinds"]), "streams": streams})


_SWAPS_S = (0.5, 2.0, 5.0, 15.0, 40.0)
_DUES_S = (5.0, 20.0)
_WEIGHTS = (1.0, 1.0, 1.0, 3.0)
_PARTS = (0.02, 0.2, 1.0, 3.0)
_SHAPE_END_S = 90.0
_PER_S = 0.05, 40.0
"""The least and the greatest rate of a stream. The first is of a few requests."""
_WORKERS_MAX, _MODELS_MAX, _TENANTS_MAX = 4, 6, 4


def random_scene(seed: int) -> SceneShape:
    """Return a fleet of 1 to 4 workers and up to 6 models, with 2 to 4 tenants, of a load between 0.1 and 1.5.

    Some fleets have unlike GPUs, some tenants more weight, and some streams begin late, end early or are even.
    """
    random = Random(f"dominance {seed}")
    workers, models = random.randint(1, _WORKERS_MAX), random.randint(2, _MODELS_MAX)
    swap_s = {f"m{at}": random.choice(_SWAPS_S) for at in range(models)}
    kinds = tuple(random.choice((FAST, SLOW)) for _ in range(workers)) if random.random() < 0.2 else (FAST,) * workers
    tenants = [f"t{at}" for at in range(random.randint(2, _TENANTS_MAX))]
    load = workers * random.uniform(0.1, 1.5) * 10
    streams = []
    for tenant in tenants:
        wanted = random.sample(list(swap_s), random.randint(1, min(2, models)))
        part = random.choice(_PARTS)
        slo_class = random.choice(["interactive", "interactive", "normal"])
        for model in wanted:
            per_s = max(_PER_S[0], load * part / len(tenants) / len(wanted) / 1.5)
            start_s = random.choice([0.0, 0.0, 0.0, 30.0])
            end_s = random.choice([_SHAPE_END_S, _SHAPE_END_S, _SHAPE_END_S, 45.0])
            outputs, even = random.choice([20.0, 200.0]), random.random() < 0.2
            streams.append(Stream(tenant, model, per_s, end_s, start_s, slo_class, outputs, even))
    due_s, weights = random.choice(_DUES_S), {tenant: random.choice(_WEIGHTS) for tenant in tenants}
    streams[0] = replace(streams[0], start_s=0.0, end_s=_SHAPE_END_S, per_s=max(0.1, streams[0].per_s))
    return SceneShape(f"random {seed}", kinds, swap_s, due_s, weights, tuple(streams))


def vary(shape: SceneShape, random: Random) -> SceneShape:
    """Return a neighbour of the scene for a search: one thing is another."""
    kind = random.randrange(6)
    if kind == 0:
        return replace(shape, swap_s={**shape.swap_s, random.choice(list(shape.swap_s)): random.choice(_SWAPS_S)})
    if kind == 1:
        kinds = shape.kinds
        if len(kinds) > 1 and random.random() < 0.5:
            return replace(shape, kinds=kinds[:-1])
        return replace(shape, kinds=(*kinds, random.choice(kinds))[:_WORKERS_MAX])
    if kind == 2:
        return replace(shape, due_s=random.choice(_DUES_S))
    if kind == 3:
        return replace(shape, weights={**shape.weights, random.choice(list(shape.weights)): random.choice(_WEIGHTS)})
    at = random.randrange(len(shape.streams))
    streams = list(shape.streams)
    streams[at] = _vary_stream(streams[at], list(shape.swap_s), random)
    return replace(shape, streams=tuple(streams))


def _vary_stream(stream: Stream, models: Sequence[str], random: Random) -> Stream:
    kind = random.randrange(6)
    if kind <= 1:
        per_s = stream.per_s * random.choice((0.5, 0.8, 1.25, 2.0))
        return replace(stream, per_s=min(_PER_S[1], max(_PER_S[0], per_s)))
    if kind == 2:
        return replace(stream, model=random.choice(models))
    if kind == 3:
        return replace(stream, outputs=20.0 if stream.outputs == 200.0 else 200.0)
    if kind == 4:
        return replace(stream, slo_class="normal" if stream.slo_class == "interactive" else "interactive")
    start_s, end_s = random.choice([(0.0, _SHAPE_END_S), (30.0, _SHAPE_END_S), (0.0, 45.0), (30.0, 60.0)])
    return replace(stream, start_s=start_s, end_s=end_s)
