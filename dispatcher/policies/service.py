"""Service: the unit in which every layer charges.

Source: VTC (OSDI 2024), section 3.1 and 4.2: service is h(input tokens, output tokens); the paper's default is
weighted tokens, w_p = 1 for an input token and w_q = 2 for an output token, after the price lists of hosted models.
Any h that never falls in either argument will do: a charge per token is the difference of two values of h, so the
charges of one request always add up to h of its final lengths, whatever the steps were.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class ServiceFunction(Protocol):
    """h(input_tokens, output_tokens) in service units; never falling in either argument."""

    def __call__(self, input_tokens: int, output_tokens: int) -> float: ...


@dataclass(frozen=True, slots=True)
class WeightedTokens:
    """h(p, q) = input_weight * p + output_weight * q (VTC section 3.1)."""

    input_weight: float = 1.0
    output_weight: float = 2.0

    def __call__(self, input_tokens: int, output_tokens: int) -> float:
        return self.input_weight * input_tokens + self.output_weight * output_tokens


WEIGHTED_TOKENS = WeightedTokens()


def service_delta(h: ServiceFunction, input_tokens: int, output_before: int, output_after: int) -> float:
    """Service of the output tokens numbered output_before + 1 … output_after of one request (VTC section 4.2)."""
    return h(input_tokens, output_after) - h(input_tokens, output_before)
