"""Service: the unit in which every layer charges.

Source: VTC (OSDI 2024), sections 3.1 and 4.2. Service is h(input tokens, output tokens). The paper's default is
weighted tokens, w_p = 1 for an input token and w_q = 2 for an output token, after the price lists of hosted models.
Every h works that does not decrease when an argument grows. The charge of a token is the difference of two values of h,
so the charges of one request always add up to h of its final lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class ServiceFunction(Protocol):
    """h(input_tokens, output_tokens) in service units. It does not decrease when an argument grows."""

    def __call__(self, input_tokens: int, output_tokens: int) -> float: ...


@dataclass(frozen=True, slots=True)
class WeightedTokens:
    """h(p, q) = input_weight * p + output_weight * q (VTC section 3.1)."""

    input_weight: float = 1.0
    output_weight: float = 2.0

    def __call__(self, input_tokens: int, output_tokens: int) -> float:
        return self.input_weight * input_tokens + self.output_weight * output_tokens


@dataclass(frozen=True, slots=True)
class Flops:
    """h(p, q) = (2 N n + 2 L d n (n + 1)) / 10^9 in GFLOP, n = p + q (VTC section 3.1, "number of FLOPs").

    For a decoder-only transformer with N parameters, L layers and hidden size d: each token costs 2 N in the matrix
    products, and 4 L d for each token that it attends to, itself included. The defaults are those of Llama-2-7b.
    The last output token is counted like the others, although the model never reads it.
    """

    parameters: float = 6.74e9
    layers: int = 32
    hidden: int = 4096

    def __call__(self, input_tokens: int, output_tokens: int) -> float:
        tokens = input_tokens + output_tokens
        attention = 2 * self.layers * self.hidden * tokens * (tokens + 1)
        return (2 * self.parameters * tokens + attention) / 1e9


@dataclass(frozen=True, slots=True)
class Profiled:
    """h(p, q) = 2.1 p + q + 0.04 p q + 0.032 q^2 + 11.46 (VTC Appendix B.2).

    A fit to the measured time that a request takes in a full batch of Llama-2-7b on an A10G. The paper gives no unit.
    The constant is charged with the prompt.
    """

    def __call__(self, input_tokens: int, output_tokens: int) -> float:
        quadratic = (0.04 * input_tokens + 0.032 * output_tokens) * output_tokens
        return 2.1 * input_tokens + output_tokens + quadratic + 11.46


CACHED_FRACTION = 0.1
"""Price of a prompt token from the prefix cache, divided by that of a computed one. Hosted models have this ratio."""
ADAPTER_LOAD_TOKENS = 512
"""Input tokens that the load of a LoRA adapter is charged as, at the gate and in the engines: about the prompt tokens
that a large GPU computes in the 50 ms in which it waits for a copy of an adapter."""


def cache_discount(h: ServiceFunction, cached_tokens: int, cached_fraction: float = CACHED_FRACTION) -> float:
    """Return what a request costs less because `cached_tokens` of its prompt were in the prefix cache, in service
    units. The gate and the engines charge h(p, q) minus this."""
    return (1.0 - cached_fraction) * (h(cached_tokens, 0) - h(0, 0)) if cached_tokens else 0.0


WEIGHTED_TOKENS = WeightedTokens()
_TOKENS = WeightedTokens(1.0, 1.0)
"""h(p, q) = p + q (VTC section 3.1, "number of tokens")."""

SERVICE_FUNCTIONS: dict[str, ServiceFunction] = {
    "weighted": WEIGHTED_TOKENS,
    "tokens": _TOKENS,
    "flops": Flops(),
    "profiled": Profiled(),
}


def service_function(name: str) -> ServiceFunction:
    """Return the service function of this name. Raises ValueError for an unknown name, and lists the known ones."""
    if name not in SERVICE_FUNCTIONS:
        raise ValueError(f"unknown service function {name!r}; there are {', '.join(SERVICE_FUNCTIONS)}")
    return SERVICE_FUNCTIONS[name]


def service_delta(h: ServiceFunction, input_tokens: int, output_before: int, output_after: int) -> float:
    """Return the service of the output tokens output_before + 1 … output_after of one request (VTC section 4.2)."""
    return h(input_tokens, output_after) - h(input_tokens, output_before)
