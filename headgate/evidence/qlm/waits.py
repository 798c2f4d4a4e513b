"""Figures 3, 4 and 18 of QLM: waiting times are predictable, and eviction ends the blocking at the head of a queue.

QLM's equation 2, alone and corrected, predicts the waits of a queue that is full at the start:

    W = (service of the requests before - B r) / Θ        equation 2 has no B r

When a request is admitted, the requests before it have not ended: each of the B running ones still needs r. Equation 2
waits for their last token, so it is B r / Θ too high, which is most of the wait of a few groups.

All requests arrive at time 0, as in QLM's Figure 18. A group has four batches of requests (QLM's δ = 4). Θ, μ, σ and B
are those of an earlier run with other lengths (another seed), never of the run that is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

from dispatcher.policies.planning.history import LengthHistory, Lengths, lengths_without_history
from dispatcher.policies.service import WEIGHTED_TOKENS
from dispatcher.policies.waiting import batch_wait_s, residual
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.tiers import TierSettings
from headgate.evidence.document import Cell, Check, Section, Setting, Table, experiment
from headgate.evidence.qlm.scenes import lengths
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.measures.collector import Percentiles
from headgate.simulator.requests import SimRequest
from headgate.simulator.run import Run, RunSpec
from headgate.simulator.simulate import simulate
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload

_FLOORS = {"a10g-llama2-7b": 0.95, "a100-llama2-13b": 0.98, "a100x8-llama3-70b": 0.98, "a100-llama3-8b-chunked": 0.98}
"""The R² that is wanted at four groups, by profile. The first two were 0.7 and 0.9 before a look, which equation 2
alone passes too."""
_BATCHES = {"a10g-llama2-7b": 20, "a100-llama2-13b": 72, "a100x8-llama3-70b": 63, "a100-llama3-8b-chunked": 254}
"""Requests of a batch, by profile, only to size the groups (PLANNING, "Waiting time")."""
_GROUP_BATCHES = 4
_HISTORY_GROUPS = 4
_TOKENS_MIN, _TOKENS_MAX = 4, 1024
_INPUT_MEDIAN, _INPUT_SIGMA, _OUTPUT_MEDIAN, _OUTPUT_SIGMA = 100, 1.2, 160, 1.0


@dataclass(frozen=True, slots=True)
class ProfiledRun:
    """What an earlier run showed. `running`: B, the mean number of running requests while requests wait."""

    capacity_per_s: float
    running: float
    lengths: Lengths
    input_mean: float


def requests(count: int, seed: str) -> list[SimRequest]:
    """Return requests at time 0 with log-normal lengths, cut to 4 to 1,024 tokens."""
    random = Random(seed)

    def tokens(median: float, sigma: float) -> int:
        return max(_TOKENS_MIN, min(_TOKENS_MAX, int(random.lognormvariate(math.log(median), sigma))))

    arrivals = (
        Arrival(0.0, "all", tokens(_INPUT_MEDIAN, _INPUT_SIGMA), tokens(_OUTPUT_MEDIAN, _OUTPUT_SIGMA))
        for _ in range(count)
    )
    return [SimRequest(str(number), arrival, 0.0) for number, arrival in enumerate(arrivals)]


def profiled(profile: str, seed: str) -> ProfiledRun:
    """Run _HISTORY_GROUPS groups and measure Θ and B until the last admission."""
    played = requests(_HISTORY_GROUPS * _GROUP_BATCHES * _BATCHES[profile], seed)
    _play(profile, played)
    until_s = max(request.admitted_s for request in played)
    history = LengthHistory()
    for request in played:
        history.observe(request.arrival.output_tokens)
    return ProfiledRun(
        sum(_service_until(request, until_s) for request in played) / until_s,
        sum(min(request.finish_s, until_s) - request.admitted_s for request in played) / until_s,
        history.lengths(lengths_without_history(_TOKENS_MAX)),
        sum(request.arrival.input_tokens for request in played) / len(played),
    )


def _play(profile: str, played: list[SimRequest]) -> None:
    engine = make_engine(load_profile(profile), make_policy("fcfs"))
    for request in played:
        engine.submit(request, 0.0)
    while engine.advance(math.inf):
        pass


def fits(profile: str, groups: int, seed: int) -> tuple[float, float]:
    """Return R² of equation 2 alone, and of the corrected form, over the requests of so many groups."""
    known = profiled(profile, f"history {seed}")
    played = requests(groups * _GROUP_BATCHES * _BATCHES[profile], f"run {seed}")
    _play(profile, played)
    actual = [request.first_token_s for request in played]
    weight = WEIGHTED_TOKENS.output_weight
    rest = weight * residual(known.lengths.output_mean, known.lengths.output_deviation**2)
    each = known.input_mean + weight * known.lengths.output_mean
    predicted = [
        [batch_wait_s(i * each, 0.0, batch, rest, known.capacity_per_s) for i in range(len(played))]
        for batch in (0.0, known.running)
    ]
    return _r_squared(actual, predicted[0]), _r_squared(actual, predicted[1])


def _r_squared(actual: Sequence[float], predicted: Sequence[float]) -> float:
    """Return 1 - squared errors / squared distances from the mean. At least two different actual values are needed."""
    mean = fmean(actual)
    errors = sum((a - p) ** 2 for a, p in zip(actual, predicted, strict=True))
    return 1 - errors / sum((a - mean) ** 2 for a in actual)


def _service_until(request: SimRequest, until_s: float) -> float:
    """Return the service delivered by then: the prompt, and the output evenly from the first token to the last."""
    if request.first_token_s >= until_s:
        return 0.0
    lasted_s = max(request.finish_s - request.first_token_s, 1e-9)
    share = min(1.0, (until_s - request.first_token_s) / lasted_s)
    return request.arrival.input_tokens + WEIGHTED_TOKENS.output_weight * share * request.arrival.output_tokens


_GROUPS = (1, 2, 4, 8)
_FIT_SEEDS = 3

_PROFILES = ("a10g-llama2-7b", "a100-llama2-13b", "a100x8-llama3-70b")
_LONG_REQUESTS, _LONG_TOKENS = 200, (800, 1000)
_CHAT_PER_S, _CHAT_S = 0.5, 60.0
_TIMES = 50.0
_WAYS: dict[str, tuple[str, bool]] = {
    "in order of arrival": ("fcfs", False),
    "by tier": ("tiered:vtc", False),
    "by tier, with eviction": ("tiered:vtc", True),
}
"""The policy of the engine's queue, and whether it evicts."""


@experiment("qlm-figure-3-18", "Figures 3 and 18: waiting times are predictable", "QLM, sections 2.4 and 8.3")
def figures_3_and_18(setting: Setting) -> Section:
    jobs = [(profile, groups, seed) for profile in _BATCHES for groups in _GROUPS for seed in range(_FIT_SEEDS)]
    found = dict(zip(jobs, setting.map(_fits, jobs), strict=True))

    def worst(profile: str, groups: int) -> tuple[float, float]:
        fitted = [found[profile, groups, seed] for seed in range(_FIT_SEEDS)]
        return min(alone for alone, _ in fitted), min(ours for _, ours in fitted)

    rows: list[tuple[Cell, ...]] = [
        (profile, *(f"{alone:.2f}, {ours:.3f}" for alone, ours in (worst(profile, groups) for groups in _GROUPS)))
        for profile in _BATCHES
    ]
    return Section(
        text=(
            "All requests wait from time 0, in groups of four batches. Capacity, batch and lengths are those of an "
            f"earlier run with other lengths. A cell has R² of QLM's equation 2 and of ours, the worst of {_FIT_SEEDS} "
            "seeds. The paper has 0.99 at four groups.",
        ),
        tables=[Table("R² by the number of groups", ("profile", *(str(groups) for groups in _GROUPS)), rows)],
        checks=[
            Check(f"{profile}: R² at four groups is at least {floor:g}", ours >= floor, f"{ours:.3f}")
            for profile, floor in _FLOORS.items()
            for _, ours in [worst(profile, 4)]
        ]
        + [
            Check(
                "up to two groups ours is better than equation 2, which ignores that the first batch does not wait",
                all(ours > alone for profile in _BATCHES for alone, ours in [worst(profile, 1), worst(profile, 2)]),
                f"on all {len(_BATCHES)} profiles",
            )
        ],
    )


@experiment("qlm-figure-4", "Figure 4: eviction ends the blocking at the head of the queue", "QLM, section 2.4")
def figure_4(setting: Setting) -> Section:
    jobs = [(profile, way) for profile in _PROFILES for way in _WAYS]
    runs = dict(zip(jobs, setting.map(_run_behind_long, jobs), strict=True))
    waits = {job: _waits(run) for job, run in runs.items()}
    rows: list[tuple[Cell, ...]] = [
        (profile, way, waits[profile, way].p50, waits[profile, way].p99, round(runs[profile, way].total_time_s))
        for profile, way in jobs
    ]
    in_order, by_tier, evicting = _WAYS
    against_order = [waits[profile, in_order].p50 / waits[profile, evicting].p50 for profile in _PROFILES]
    alone = [waits[profile, by_tier].p50 / waits[profile, evicting].p50 for profile in _PROFILES]
    return Section(
        text=(
            f"{_LONG_REQUESTS} requests of tier background with {_LONG_TOKENS[0]} to {_LONG_TOKENS[1]} tokens of "
            f"output wait from time 0; requests of tier premium arrive {_CHAT_PER_S:g} times a second for {_CHAT_S:g} "
            "s. One engine; the times are seconds from a premium request's arrival to its first token.",
        ),
        tables=[Table("Premium, to the first token", ("profile", "queue", "P50", "P99", "seconds of the run"), rows)],
        checks=[
            Check(
                f"against the order of arrival, tiers with eviction cut P50 at least {_TIMES:g} times",
                min(against_order) >= _TIMES,
                _each(against_order),
            ),
            Check(
                f"eviction alone cuts P50 at least {_TIMES:g} times",
                min(alone) >= _TIMES,
                _each(alone),
                "without eviction a premium request waits for the next end in a batch that has ends all the time; with "
                "it, its own prompt's computation remains. QLM does not say with which batch it compares",
            ),
        ],
    )


def _fits(job: tuple[str, int, int]) -> tuple[float, float]:
    return fits(*job)


def _run_behind_long(job: tuple[str, str]) -> Run:
    profile, way = job
    policy, evicts = _WAYS[way]
    return simulate(RunSpec(_behind_long(), policy, load_profile(profile), tiers=TierSettings(preemption=evicts)))


def _behind_long() -> ListWorkload:
    random = Random("figure 4")
    arrivals = [
        Arrival(0.0, "batch", lengths(random)[0], random.randint(*_LONG_TOKENS), tier="background")
        for _ in range(_LONG_REQUESTS)
    ]
    at_s = random.expovariate(_CHAT_PER_S)
    while at_s < _CHAT_S:
        arrivals.append(Arrival(at_s, "chat", *lengths(random), tier="premium"))
        at_s += random.expovariate(_CHAT_PER_S)
    return ListWorkload("premium behind long requests", arrivals)


def _waits(run: Run) -> Percentiles:
    found = run.scheduling.tiers["premium"].ttft_s if run.scheduling is not None else None
    if found is None:
        raise RuntimeError(f"{run.workload}: no premium request was served")
    return found


def _each(ratios: list[float]) -> str:
    return ", ".join(f"{ratio:.0f}" for ratio in ratios) + " times"
