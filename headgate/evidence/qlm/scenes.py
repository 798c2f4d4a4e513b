"""The chapter on QLM: which figure is checked where, its workloads and fleets, and how they are played.

Everything random is seeded by the scene's name. QLM publishes neither data nor rates that can be read off. Its
workloads have 3,500 requests of ShareGPT with Poisson arrivals (section 8). Here lengths are lognormal with
ShareGPT's rough shape (Figure 8): prompts of 200 tokens in the mean, outputs of 250, both with a long tail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from random import Random
from typing import TypeVar

from dispatcher.policies.planning.groups import DELTA
from dispatcher.policies.planning.slo import SloClass
from headgate.evidence.document import Check, Section, Setting, Table, experiment
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.fleet.spec import FleetSpec, Loadable, WorkerSpec, default_slots
from headgate.simulator.run import Run, RunSpec
from headgate.simulator.simulate import simulate
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload, Workload

_INPUT_MEAN, _OUTPUT_MEAN = 200.0, 250.0
_VARIATION = 1.0
"""Standard deviation of a length over its mean."""
_TOKENS_MAX = 1000
MEGA_TOKENS = (3000, 4000)
"""Input and output tokens of a mega prompt together (QLM, section 8)."""


_UNCHUNKED = {"chunk_tokens": None, "steps_between_admissions": 10}
"""Prompts in steps of their own: the same work, in a fraction of the simulator's time."""


@dataclass(frozen=True, slots=True)
class RequestStream:
    """`requests` of one tenant and model, with exponential gaps. `per_s` 0: all of them at `start_s`."""

    tenant: str
    model: str
    slo_class: str
    requests: int
    per_s: float
    start_s: float = 0.0


def lengths(random: Random) -> tuple[int, int]:
    """Draw the input and output tokens of a request."""
    return _lognormal(random, _INPUT_MEAN), _lognormal(random, _OUTPUT_MEAN)


def workload(name: str, streams: Iterable[RequestStream], *, seed: int = 1, mega: float = 0.0) -> ListWorkload:
    """Draw the arrivals. `mega`: the part of the requests that are mega prompts."""
    return ListWorkload(name, (arrival for stream in streams for arrival in _arrivals(name, stream, seed, mega)))


def _arrivals(name: str, stream: RequestStream, seed: int, mega: float) -> Iterable[Arrival]:
    random = Random(f"{name} {stream.tenant} {stream.model} {stream.slo_class} {seed}")
    at_s = stream.start_s
    for _ in range(stream.requests):
        at_s += random.expovariate(stream.per_s) if stream.per_s else 0.0
        inputs, outputs = _mega(random) if random.random() < mega else lengths(random)
        yield Arrival(at_s, stream.tenant, inputs, outputs, model=stream.model, slo_class=stream.slo_class)


def _mega(random: Random) -> tuple[int, int]:
    total = random.randint(*MEGA_TOKENS)
    return total * 2 // 3, total // 3


def _lognormal(random: Random, mean: float) -> int:
    sigma = sqrt(log(1 + _VARIATION**2))
    return max(4, min(_TOKENS_MAX, round(exp(random.gauss(log(mean) - sigma**2 / 2, sigma)))))


def fleet(workers: int, models: Mapping[str, tuple[str, float]], kind: str = "node") -> FleetSpec:
    """Return equal workers that can load every model; at the start they have the models in turn. `models`: engine
    profile and seconds of a swap."""
    able, names = loadables(models), list(models)
    return FleetSpec([WorkerSpec(f"{kind}-{at + 1}", kind, able, names[at % len(names)]) for at in range(workers)])


def loadables(models: Mapping[str, tuple[str, float]]) -> dict[str, Loadable]:
    found = {}
    for name, (engine, swap_s) in models.items():
        profile = load_profile(engine)
        found[name] = Loadable(profile.model_copy(update=_UNCHUNKED), swap_s, default_slots(profile))
    return found


MISTRAL, VICUNA, _LLAMA = ("a100-llama3-8b-chunked", 2.0), ("a100-llama2-13b", 3.0), ("a100x8-llama3-70b", 6.0)
"""Engine profile and seconds of a swap from host memory: 16, 26 and 141 GB."""
_W_B_MODELS = {"mistral": MISTRAL, "llama-1": _LLAMA, "vicuna-1": VICUNA, "vicuna-2": VICUNA, "llama-2": _LLAMA}
"""Fine-tuned variants, each a model of its own: the first two for Batch-1, the others for Batch-2."""
_COLD_S = {"mistral": 10.0, "vicuna-1": 15.0, "vicuna-2": 15.0, "llama-1": 60.0, "llama-2": 60.0}
"""Seconds of a swap from storage."""


def w_b_fleet(*, cold: bool = False) -> FleetSpec:
    """Return eight workers that can load each of the five models. `cold`: from storage, not from host memory."""
    return fleet(8, {name: (engine, _COLD_S[name] if cold else s) for name, (engine, s) in _W_B_MODELS.items()})


def w_b(batch_1_per_s: float, *, requests: int = 3500, seed: int = 1) -> ListWorkload:
    """QLM's workload W_B: as many requests of Batch-1 as of Batch-2, at the same rate."""
    half = requests // 2
    one, two = half // 2, half // 3
    return workload(
        f"w_b at {batch_1_per_s:g}/s",
        [
            RequestStream("batch-1", "mistral", "normal", one, batch_1_per_s / 2),
            RequestStream("batch-1", "llama-1", "normal", one, batch_1_per_s / 2),
            RequestStream("batch-2", "vicuna-1", "batch", two, batch_1_per_s / 3),
            RequestStream("batch-2", "vicuna-2", "batch", two, batch_1_per_s / 3),
            RequestStream("batch-2", "llama-2", "batch", half - 2 * two, batch_1_per_s / 3),
        ],
        seed=seed,
    )


_FLOOD_S = 240.0
FLOOD_MODELS = {f"model-{number}": MISTRAL for number in range(1, 5)}
_FLOOD_PER_S, _STEADY_PER_S = 90.0, 6.0


def flood(steady_class: str, *, seed: int = 1) -> ListWorkload:
    """A tenant that sends 90 requests/s to four workers that serve 80, all interactive, in turn to three models; beside
    a tenant within its half that sends 6 requests/s of `steady_class` to a model of its own."""
    steady_model, *flooded = FLOOD_MODELS
    phase_s = _FLOOD_S / len(flooded)
    streams = [
        RequestStream("flood", model, "interactive", round(_FLOOD_PER_S * phase_s), _FLOOD_PER_S, phase_s * number)
        for number, model in enumerate(flooded)
    ]
    steady = RequestStream("steady", steady_model, steady_class, round(_STEADY_PER_S * _FLOOD_S), _STEADY_PER_S)
    return workload(f"flood beside {steady_class}", [*streams, steady], seed=seed)


SMALL = ("a10g-llama2-7b", 3.0)
_DUE_CLASSES = 6
_POPULARITY = (0.45, 0.25, 0.15, 0.10, 0.05)
_FIVE_MODELS = tuple(f"model-{number}" for number in range(1, 6))
_FIVE_PER_S = 40.0
"""Requests per second that two workers of the profile can serve without swaps."""


def five_models(load: float, *, requests: int = 6000, seed: int = 1) -> ListWorkload:
    """One tenant that uses five models, class normal. `load`: the part of two workers' capacity."""
    streams = [
        RequestStream("all", model, "normal", round(part * requests), part * load * _FIVE_PER_S)
        for model, part in zip(_FIVE_MODELS, _POPULARITY, strict=True)
    ]
    return workload(f"five models at {load:g}", streams, seed=seed)


A_MODELS = {"vicuna": VICUNA}
_A_CLASSES = {"interactive": 0.5, "normal": 0.25, "batch": 0.25}
"""The part of the requests of each class of W_A. QLM has no tenants, so all are of one."""


def w_a(per_s: float, *, requests: int = 2000, seed: int = 1, mega: float = 0.0) -> ListWorkload:
    """QLM's workload W_A: one model, three classes. `per_s` 0: all requests at once."""
    streams = [
        RequestStream("all", "vicuna", name, round(part * requests), part * per_s) for name, part in _A_CLASSES.items()
    ]
    return workload(f"w_a of {requests} at {per_s:g}/s", streams, seed=seed, mega=mega)


def mixed_fleet(a10s: int, a100s: int) -> FleetSpec:
    """Return A10Gs and A100s with one model, which is loaded on all of them."""
    a10, a100 = fleet(a10s or 1, {"vicuna": SMALL}, "a10"), fleet(a100s or 1, A_MODELS, "a100")
    return FleetSpec([*a10.workers[:a10s], *a100.workers[:a100s]])


def due_by_turns(requests: int, *, seed: int = 1) -> ListWorkload:
    """Requests of five models that wait at once, due within an hour, in a random order (Figure 5)."""
    random = Random(f"due by turns {seed}")
    classes = [f"due-{number}" for number in range(_DUE_CLASSES)]
    return ListWorkload(
        "due by turns",
        (
            Arrival(0.0, "all", *lengths(random), model=random.choice(_FIVE_MODELS), slo_class=random.choice(classes))
            for _ in range(requests)
        ),
    )


def due_by_turns_fleet() -> FleetSpec:
    found = five_models_fleet(3.0)
    classes = [SloClass(f"due-{number}", 600.0 * (number + 1)) for number in range(_DUE_CLASSES)]
    return FleetSpec(found.workers[:1], classes, classes[0].name)


def five_models_fleet(swap_s: float) -> FleetSpec:
    return fleet(2, dict.fromkeys(_FIVE_MODELS, (MISTRAL[0], swap_s)))


K = TypeVar("K")
PLANNERS = ("round-robin", "fcfs", "edf", "static", "shepherd", "qlm", "plan")


def played(
    setting: Setting, scenes: Mapping[K, tuple[Workload, FleetSpec]], planners: Iterable[str]
) -> dict[tuple[K, str], Run]:
    """Run each planner on each scene. Returns the runs by scene and planner."""
    keys = [(scene, planner) for scene in scenes for planner in planners]
    return dict(
        zip(keys, setting.map(simulate, [fleet_spec(*scenes[scene], name) for scene, name in keys]), strict=True)
    )


def fleet_spec(workload: Workload, fleet: FleetSpec, planner: str, *, delta: int = DELTA) -> RunSpec:
    return RunSpec(workload, "fcfs", fleet, planner=planner, delta=delta)


def percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def at_least(claim: str, least: float, found: Sequence[float]) -> Check:
    """Check that every part is at least `least`."""
    return Check(claim, min(found) >= least, ", ".join(percent(part) for part in found))


def times(claim: str, least: float, ours: Run, theirs: Run, reason: str = "") -> Check:
    """Check that our throughput is at least `least` times theirs. `reason`: why it is known not to be."""
    ratio = ours.requests_per_s / theirs.requests_per_s
    return Check(claim, ratio >= least, _ratio(ratio, ours, theirs), reason)


def _ratio(ratio: float, ours: Run, theirs: Run) -> str:
    return f"{ratio:.2f} times: {ours.requests_per_s:.2f} against {theirs.requests_per_s:.2f} requests/s"


_FIGURES = (
    ("1", "fewer GPUs", "qlm-figure-1"),
    ("3, 18", "waiting times are predictable", "qlm-figure-3-18"),
    ("4", "eviction cuts the wait at the head", "qlm-figure-4"),
    ("5", "EDF drains more slowly than groups", "qlm-figure-5"),
    ("9, 10", "throughput and SLOs with one model", "qlm-figure-9-10"),
    ("11, 14", "each operation left out", "qlm-figure-11-14, without eviction"),
    ("12, 13", "throughput and SLOs with several models", "qlm-figure-12-13"),
    ("15", "A10 and A100 together", "qlm-figure-15"),
    ("16", "mega prompts", "qlm-figure-16"),
    ("17", "the gain grows with the queue", "qlm-figure-17"),
    ("19", "group size", "qlm-figure-19"),
    ("20", "the time of a plan", "qlm-figure-20"),
)


@experiment("qlm", "Queue management for SLOs: the figures of its evaluation", "QLM (SoCC 2024), sections 2 and 8")
def overview(_setting: Setting) -> Section:
    return Section(
        text=(
            "QLM publishes neither data nor rates: its curves are images. So its statements are checked as bands, on "
            "workloads made as it describes them, with lognormal lengths (prompts of 200 tokens and outputs of 250 in "
            "the mean, at most 1,000) and the simulator's profiles of step times. Prompts are computed in steps of "
            "their own. `headgate simulate --fleet` runs the same planners; docs/simulator.md describes them. `qlm` is "
            "QLM's planner with annealing in place of its program, `plan` is headgate's: the production's planner and "
            "gate. A request is in time if its first token is.",
        ),
        tables=[Table("Figures", ("figure", "statement", "where"), _FIGURES)],
    )
