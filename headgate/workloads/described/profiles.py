"""Built-in profiles: arrivals made from published length statistics, under a random source that is handed in.

Source: Azure LLM inference traces 2023 (AzurePublicDataset, CC-BY 4.0), an hour of a chat and an hour of a coding
service; the figures below were computed over them (medians; spread of the logarithm; mean gap, coefficient of variation
of the gaps). Lengths are lognormal about the median, gaps are gamma-distributed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from headgate.workloads.traces.files import Arrival


@dataclass(frozen=True, slots=True)
class Profile:
    """Tokens: median and the standard deviation of the logarithm; gaps: mean (seconds), coefficient of variation."""

    input_median: float
    input_sigma: float
    output_median: float
    output_sigma: float
    gap_mean_s: float
    gap_cv: float


CHAT = Profile(input_median=1020, input_sigma=0.99, output_median=129, output_sigma=0.86, gap_mean_s=0.181, gap_cv=1.1)
"""19,366 requests: short questions and long histories, long answers."""
CODE = Profile(input_median=1469, input_sigma=1.36, output_median=13, output_sigma=0.85, gap_mean_s=0.390, gap_cv=3.0)
"""8,819 requests: long prompts, short completions. The trace's gaps vary far more (13: a few long pauses); 3 keeps the
bursts and leaves the pauses out."""
PROFILES = {"chat": CHAT, "code": CODE}


def make_arrivals(profile: Profile, tenant: str, requests: int, random: Random) -> list[Arrival]:
    """That many requests, from time 0."""
    now_s, made = 0.0, []
    for _ in range(requests):
        made.append(
            Arrival(
                now_s,
                tenant,
                _lognormal(random, profile.input_median, profile.input_sigma),
                _lognormal(random, profile.output_median, profile.output_sigma),
            )
        )
        shape = 1.0 / profile.gap_cv**2
        now_s += random.gammavariate(shape, profile.gap_mean_s / shape)
    return made


def _lognormal(random: Random, median: float, sigma: float) -> int:
    return max(1, round(random.lognormvariate(math.log(median), sigma)))
