"""Waits of a queue that is full at the start, in the simulator: QLM's equation 2 alone and corrected.

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
from gpu_worker.policies.fairness.registry import make_policy
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival

FLOORS = {"a10g-llama2-7b": 0.7, "a100-llama2-13b": 0.9, "a100x8-llama3-70b": 0.98, "a100-llama3-8b-chunked": 0.98}
"""The R² that is wanted at four groups, by profile."""
BATCHES = {"a10g-llama2-7b": 20, "a100-llama2-13b": 72, "a100x8-llama3-70b": 63, "a100-llama3-8b-chunked": 254}
"""Requests of a batch, by profile, only to size the groups (PLANNING, "Waiting time")."""
GROUP_BATCHES = 4
HISTORY_GROUPS = 4
TOKENS_MIN, TOKENS_MAX = 4, 1024
INPUT_MEDIAN, INPUT_SIGMA, OUTPUT_MEDIAN, OUTPUT_SIGMA = 100, 1.2, 160, 1.0


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
        return max(TOKENS_MIN, min(TOKENS_MAX, int(random.lognormvariate(math.log(median), sigma))))

    arrivals = (
        Arrival(0.0, "all", tokens(INPUT_MEDIAN, INPUT_SIGMA), tokens(OUTPUT_MEDIAN, OUTPUT_SIGMA))
        for _ in range(count)
    )
    return [SimRequest(str(number), arrival, 0.0) for number, arrival in enumerate(arrivals)]


def profiled(profile: str, seed: str) -> ProfiledRun:
    """Run HISTORY_GROUPS groups and measure Θ and B until the last admission."""
    played = requests(HISTORY_GROUPS * GROUP_BATCHES * BATCHES[profile], seed)
    play(profile, played)
    until_s = max(request.admitted_s for request in played)
    history = LengthHistory()
    for request in played:
        history.observe(request.arrival.output_tokens)
    return ProfiledRun(
        sum(_service_until(request, until_s) for request in played) / until_s,
        sum(min(request.finish_s, until_s) - request.admitted_s for request in played) / until_s,
        history.lengths(lengths_without_history(TOKENS_MAX)),
        sum(request.arrival.input_tokens for request in played) / len(played),
    )


def play(profile: str, played: list[SimRequest]) -> None:
    engine = make_engine(load_profile(profile), make_policy("fcfs"))
    for request in played:
        engine.submit(request, 0.0)
    while engine.advance(math.inf):
        pass


def fits(profile: str, groups: int, seed: int) -> tuple[float, float]:
    """Return R² of equation 2 alone, and of the corrected form, over the requests of so many groups."""
    known = profiled(profile, f"history {seed}")
    played = requests(groups * GROUP_BATCHES * BATCHES[profile], f"run {seed}")
    play(profile, played)
    actual = [request.first_token_s for request in played]
    weight = WEIGHTED_TOKENS.output_weight
    kept = weight * known.running * residual(known.lengths)
    each = known.input_mean + weight * known.lengths.output_mean
    predicted = [
        [max(0.0, (i * each - less) / known.capacity_per_s) for i in range(len(played))] for less in (0.0, kept)
    ]
    return r_squared(actual, predicted[0]), r_squared(actual, predicted[1])


def residual(lengths: Lengths) -> float:
    """Return r = (μ² + σ²) / 2μ: the expected rest of a request that is seen running at a random time (renewal
    theory)."""
    mean, deviation = lengths.output_mean, lengths.output_deviation
    return (mean**2 + deviation**2) / (2 * mean) if mean else 0.0


def r_squared(actual: Sequence[float], predicted: Sequence[float]) -> float:
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
