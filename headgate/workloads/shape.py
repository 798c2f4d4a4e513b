"""Fitting a workload to a small engine: lengths are scaled and limited, arrivals stay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headgate.workloads.arrivals import Arrival


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
