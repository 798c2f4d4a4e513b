"""Built-in profiles: arrivals from the statistics of published traces. The random source is a parameter.

Source: Azure LLM inference traces 2023 (AzurePublicDataset, CC-BY 4.0), an hour of a chat service and an hour of a
coding service. The figures below are computed from them. Lengths are lognormal, gaps are gamma-distributed.

`fitted` fits a workload to a small engine: lengths are scaled and limited, arrivals stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

from headgate.workloads.arrivals import Arrival


@dataclass(frozen=True, slots=True)
class Profile:
    """Tokens: median and standard deviation of the logarithm. Gaps: mean in seconds and coefficient of variation."""

    input_median: float
    input_sigma: float
    output_median: float
    output_sigma: float
    gap_mean_s: float
    gap_cv: float


CHAT = Profile(input_median=1020, input_sigma=0.99, output_median=129, output_sigma=0.86, gap_mean_s=0.181, gap_cv=1.1)
"""19,366 requests: short questions with long histories, and long answers."""
CODE = Profile(input_median=1469, input_sigma=1.36, output_median=13, output_sigma=0.85, gap_mean_s=0.390, gap_cv=3.0)
"""8,819 requests: long prompts, short completions. The trace's gaps have a coefficient of variation of 13,
because of a few long pauses; 3 keeps the bursts without the pauses."""


def make_arrivals(profile: Profile, tenant: str, requests: int, random: Random) -> list[Arrival]:
    """Draw so many requests, the first at time 0."""
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


@dataclass(frozen=True, slots=True)
class Fit:
    """Divide input tokens by `input_divisor` and output tokens by `output_divisor`, and limit both."""

    input_divisor: float
    output_divisor: float
    input_min: int
    input_max: int
    output_min: int
    output_max: int


SMALL_ENGINE = Fit(input_divisor=16, output_divisor=2, input_min=8, input_max=200, output_min=16, output_max=128)
"""The fit for a model of a few layers on a CPU. A chat request of 1,020 / 129 tokens becomes 64 / 64."""

MODELLED_ENGINE = Fit(input_divisor=16, output_divisor=4, input_min=8, input_max=200, output_min=8, output_max=16)
"""The fit for a demo of a few seconds. A chat request of 1,020 / 129 tokens becomes 64 / 16."""


def fitted(arrivals: Iterable[Arrival], fit: Fit = SMALL_ENGINE) -> list[Arrival]:
    return [
        replace(
            arrival,
            input_tokens=_between(arrival.input_tokens / fit.input_divisor, fit.input_min, fit.input_max),
            output_tokens=_between(arrival.output_tokens / fit.output_divisor, fit.output_min, fit.output_max),
        )
        for arrival in arrivals
    ]


def _between(value: float, low: int, high: int) -> int:
    return max(low, min(high, round(value)))
