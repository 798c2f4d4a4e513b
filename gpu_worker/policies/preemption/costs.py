"""What a preemption costs, by strategy, and which is cheapest.

Source: the practitioner's design for tiered preemption, section 1.2. Of a request with n tokens in the KV cache, q of
them generated, p of the prompt, k bytes of KV a token (layers x KV heads x head size x 2 x bytes of a number), in
seconds that the engine cannot use for others or that the request waits longer:

    swap        k n / copy_out + k n / copy_in + 2 copy_base
    recompute   prefill(n),   prefill(n) = base + a n + b n^2
    drop        prefill(p) + q decode + retry; 0 where the request would miss its deadline even so

Figures are measured on the machine when the engine starts (`Calibration`), not taken from data sheets.

Deviations: the source divides the PCIe bandwidth by 8 although it is given in bytes a second, so swaps look eight times
dearer than they are; it takes 512 bytes a token and layer for every model, where Llama 3 70B has 4,096, so that for
that one the two errors cancel; prefill is linear there, which makes swap and recompute cross nowhere; and its drop is
dearer than a recompute whatever happens, so it is never chosen: here it is where going on is in vain.
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
    """Bytes a token, bytes a second, seconds. Infinite copy rates cost nothing; 0 means that the engine cannot swap."""

    kv_bytes_per_token: float
    copy_out_bytes_per_s: float
    copy_in_bytes_per_s: float
    copy_base_s: float
    prefill_base_s: float
    prefill_per_token_s: float
    prefill_per_token2_s: float
    decode_s: float
    """A step of the batch, as measured with one request in it."""
    retry_s: float = 1.0
    """Until a client that was told to come back does."""

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
        """The length from which on a swap is cheaper than a recompute; None where it is not up to `tokens_max`."""
        step = max(1, tokens_max // 4096)
        lengths = range(step, tokens_max + 1, step)
        cheaper = list(takewhile(lambda n: self._swap_s(n) < self.prefill_s(n), reversed(lengths)))
        return cheaper[-1] if cheaper else None

    def _swap_s(self, tokens: int) -> float:
        return self.swap_out_s(tokens) + self.swap_in_s(tokens)


UNCALIBRATED = Calibration(0.0, 0.0, 0.0, 0.0, 0.0, 1e-4, 0.0, 0.02)
"""Before anything was measured: an engine that cannot swap, and recomputes 10,000 tokens a second."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """One victim, what becomes of it, and what each strategy was thought to cost, seconds."""

    resident: Resident
    strategy: Strategy
    costs_s: Mapping[Strategy, float] = field(default_factory=dict)
    exhausted: bool = False
    """It is ended for having been preempted as often as may be."""

    @property
    def predicted_s(self) -> float:
        return self.costs_s.get(self.strategy, 0.0)


def costs_s(calibration: Calibration, resident: Resident, request: QueueRequest, now_s: float) -> dict[Strategy, float]:
    """What each strategy would cost for this resident."""
    again_s = calibration.prefill_s(resident.kv_tokens)
    swap_s = calibration.swap_out_s(resident.kv_tokens) + calibration.swap_in_s(resident.kv_tokens)
    left = (request.output_tokens_max or 0) - resident.generated
    in_vain = now_s + min(again_s, swap_s) + max(left, 0) * calibration.decode_s > request.deadline_s
    anew_s = calibration.prefill_s(request.input_tokens) + resident.generated * calibration.decode_s
    drop_s = 0.0 if in_vain else anew_s + calibration.retry_s
    return {Strategy.SWAP: swap_s, Strategy.RECOMPUTE: again_s, Strategy.DROP: drop_s}


def cheapest(costs: Mapping[Strategy, float], *, tier: Tier, may_drop: frozenset[Tier], may_swap: bool) -> Strategy:
    """Of those that may be; ties by recompute, which takes no host memory. A recompute always may."""
    allowed = [Strategy.RECOMPUTE]
    if may_swap and costs[Strategy.SWAP] < inf:
        allowed.append(Strategy.SWAP)
    if tier in may_drop:
        allowed.append(Strategy.DROP)
    return min(allowed, key=lambda strategy: costs[strategy])
