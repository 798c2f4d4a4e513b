"""The cost of a preemption by each strategy, and the cheapest strategy.

Source: docs/preemption-design.md, section 1.2. A request has n tokens in the KV cache, q of them generated, and p
prompt tokens; k is the number of KV bytes per token (layers x KV heads x head size x 2 x bytes of a number). The cost
is in seconds during which the engine cannot serve other requests, or by which the request waits longer:

    swap        k n / copy_out + k n / copy_in + 2 copy_base
    recompute   prefill(n),   prefill(n) = base + a n + b n^2
    drop        prefill(p) + q decode + retry; 0 if the request would miss its deadline anyway

The rates are measured on the machine when the engine starts (`Calibration`) and not taken from data sheets.

Deviations: the source divides the PCIe bandwidth by 8 although it is given in bytes per second, so swaps look eight
times too expensive. It takes 512 bytes per token and layer for every model; Llama 3 70B has 4,096, so for that model
the two errors cancel. Its prefill cost is linear, so swap and recompute have no crossover. Its drop always costs more
than a recompute, so it is never chosen; here a request is dropped if continuing is useless.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile
from math import inf

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.preemption.victims import Resident
from gpu_worker.policies.request import QueueRequest


class Strategy(StrEnum):
    SWAP = "swap"
    RECOMPUTE = "recompute"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Calibration:
    """Rates of one machine and model. An infinite copy rate makes copies free; 0 means that the engine cannot swap."""

    kv_bytes_per_token: float
    copy_out_bytes_per_s: float
    copy_in_bytes_per_s: float
    copy_base_s: float
    prefill_base_s: float
    prefill_per_token_s: float
    prefill_per_token2_s: float
    decode_s: float
    """Seconds of a decode step, measured with one request in the batch."""
    retry_s: float = 1.0
    """Seconds until a client retries after its request was dropped."""

    def prefill_s(self, tokens: int) -> float:
        return self.prefill_base_s + self.prefill_per_token_s * tokens + self.prefill_per_token2_s * tokens * tokens

    def swap_bytes(self, tokens: int) -> float:
        return self.kv_bytes_per_token * tokens

    def swap_out_s(self, tokens: int) -> float:
        return self._copy_s(tokens, self.copy_out_bytes_per_s)

    def swap_in_s(self, tokens: int) -> float:
        return self._copy_s(tokens, self.copy_in_bytes_per_s)

    def _copy_s(self, tokens: int, bytes_per_s: float) -> float:
        return inf if bytes_per_s <= 0 else self.copy_base_s + self.swap_bytes(tokens) / bytes_per_s

    def crossover_tokens(self, tokens_max: int) -> int | None:
        """Return the shortest length from which a swap is cheaper than a recompute at every length up to `tokens_max`.

        Return None if a recompute is cheaper at `tokens_max`. The resolution is tokens_max / 4096.
        """
        step = max(1, tokens_max // 4096)
        lengths = range(step, tokens_max + 1, step)
        cheaper = list(takewhile(lambda n: self._swap_s(n) < self.prefill_s(n), reversed(lengths)))
        return cheaper[-1] if cheaper else None

    def _swap_s(self, tokens: int) -> float:
        return self.swap_out_s(tokens) + self.swap_in_s(tokens)


UNCALIBRATED = Calibration(0.0, 0.0, 0.0, 0.0, 0.0, 1e-4, 0.0, 0.02)
"""Used before the calibration: the engine cannot swap and recomputes 10,000 tokens per second."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """A victim, the strategy chosen for it, and the predicted cost of each strategy in seconds."""

    resident: Resident
    strategy: Strategy
    costs_s: Mapping[Strategy, float] = field(default_factory=dict)
    exhausted: bool = False
    """The victim is dropped because it was preempted as often as the settings allow."""

    @property
    def predicted_s(self) -> float:
        return self.costs_s.get(self.strategy, 0.0)


def costs_s(calibration: Calibration, resident: Resident, request: QueueRequest, now_s: float) -> dict[Strategy, float]:
    """Return the cost of each strategy for a running request, in seconds."""
    recompute_s = calibration.prefill_s(resident.kv_tokens)
    swap_s = calibration.swap_out_s(resident.kv_tokens) + calibration.swap_in_s(resident.kv_tokens)
    tokens_left = max(0, (request.output_tokens_max or 0) - resident.generated)
    end_s = now_s + min(recompute_s, swap_s) + tokens_left * calibration.decode_s
    restart_s = calibration.prefill_s(request.input_tokens) + resident.generated * calibration.decode_s
    drop_s = 0.0 if end_s > request.deadline_s else restart_s + calibration.retry_s
    return {Strategy.SWAP: swap_s, Strategy.RECOMPUTE: recompute_s, Strategy.DROP: drop_s}


def cheapest(costs: Mapping[Strategy, float], *, tier: Tier, may_drop: frozenset[Tier], may_swap: bool) -> Strategy:
    """Return the cheapest allowed strategy. Recompute is always allowed, and wins ties: it needs no host memory."""
    allowed = [Strategy.RECOMPUTE]
    if may_swap and costs[Strategy.SWAP] < inf:
        allowed.append(Strategy.SWAP)
    if tier in may_drop:
        allowed.append(Strategy.DROP)
    return min(allowed, key=lambda strategy: costs[strategy])
