"""Preemption: which running requests leave for a waiting one, and by which strategy.

Source: docs/preemption-design.md, section 2.2 (victims) and section 1.2 (costs).

Victims are as few as possible: the lowest tier first, then the least progress, then the fewest preemptions so far.
Units: KV blocks and batch slots. `QueuePolicy.precedence` decides which running request may be evicted for which
waiting one.

Invariants: no request is evicted unless the evictions make enough room; every victim is needed; every victim may be
evicted for this request.

The strategy is the cheapest one. A request has n tokens in the KV cache, q of them generated, and p prompt tokens; k is
the number of KV bytes per token (layers x KV heads x head size x 2 x bytes of a number). The cost is in seconds during
which the engine cannot serve other requests, or by which the request waits longer:

    swap        k n / copy_out + k n / copy_in + 2 copy_base
    recompute   prefill(n),   prefill(n) = base + a n + b n^2
    drop        prefill(p) + q decode + retry; 0 if the request would miss its deadline anyway

The rates are measured on the machine when the engine starts (`Calibration`) and not taken from data sheets.

Deviations in the choice of victims: when the source chooses several, it ignores the rank of the waiting request, so
that premium can be evicted for any request; and it counts the freed blocks after they were cleared. Here every victim
may be evicted for this request, and its blocks are counted before the eviction. The source's greedy choice may also
include victims that later choices make unnecessary; here these are spared.

Deviations in the costs: the source divides the PCIe bandwidth by 8 although it is given in bytes per second, so swaps
look eight times too expensive. It takes 512 bytes per token and layer for every model; Llama 3 70B has 4,096, so for
that model the two errors cancel. Its prefill cost is linear, so swap and recompute have no crossover. Its drop always
costs more than a recompute, so it is never chosen; here a request is dropped if continuing is useless.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile
from math import inf

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.interface import Precedence, QueueRequest


@dataclass(frozen=True, slots=True)
class Resident:
    """A running request with its KV blocks, as an engine adapter sees it.

    `blocks`: KV blocks that its eviction frees. `kv_tokens`: tokens that a swap copies. `generated`: its output tokens
    so far. `preemptions`: how often it was preempted.
    """

    request_id: str
    tier: Tier
    blocks: int
    kv_tokens: int
    generated: int
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class Shortage:
    """The blocks and slots that a request lacks; 0 or less if it lacks none."""

    blocks: int
    slots: int

    @property
    def is_covered(self) -> bool:
        return self.blocks <= 0 and self.slots <= 0

    def is_covered_by(self, victims: Iterable[Resident]) -> bool:
        chosen = list(victims)
        return sum(victim.blocks for victim in chosen) >= self.blocks and len(chosen) >= self.slots


def sort_by_protection(
    residents: Iterable[Resident],
    rank: Callable[[str], float],
    protected: Callable[[str], bool],
    lead: Callable[[str], float] | None = None,
) -> list[Resident]:
    """Sort running requests by how long they keep their blocks: an engine without free blocks evicts the last one.

    The order is protected requests first, then the lowest rank at admission, then the most progress, then the fewest
    preemptions, then the id, which makes the order unique. The first request always continues, because no request is
    before it to take its blocks, and an evicted request keeps its progress; so every request finishes.

    `rank`, `protected`: by request id. `lead`: the service over weight of the request's tenant, by request id. If
    given, it comes before the progress, so that an unavoidable eviction takes from the tenant with the most service.
    """
    return sorted(
        residents,
        key=lambda resident: (
            not protected(resident.request_id),
            rank(resident.request_id),
            lead(resident.request_id) if lead is not None else 0.0,
            -resident.generated,
            resident.preemptions,
            resident.request_id,
        ),
    )


def choose_victims(
    shortage: Shortage,
    residents: Iterable[Resident],
    precedence: Callable[[str], Precedence | None],
    required: Collection[str] = (),
) -> list[Resident] | None:
    """Return the victims in the order of their eviction; None if no allowed set of victims covers the shortage.

    `precedence`: of a running request over the waiting one, by request id; None if it must not be evicted. `required`:
    victims in any case, for what they hold beside blocks and a slot.
    """
    ranked = [(found, resident) for resident in residents if (found := precedence(resident.request_id)) is not None]
    ranked.sort(key=lambda pair: _order(*pair))
    leaving = [resident for _, resident in ranked if resident.request_id in required]
    shortage = Shortage(shortage.blocks - sum(one.blocks for one in leaving), shortage.slots - len(leaving))
    chosen: list[Resident] = []
    for _, resident in ranked:
        if shortage.is_covered_by(chosen):
            break
        if resident.request_id not in required:
            chosen.append(resident)
    return leaving + _needed_victims(shortage, chosen) if shortage.is_covered_by(chosen) else None


def _order(precedence: Precedence, resident: Resident) -> tuple[float, float, int, int, str]:
    rank, lead = precedence
    return -rank, -lead, resident.generated, resident.preemptions, resident.request_id


def _needed_victims(shortage: Shortage, chosen: list[Resident]) -> list[Resident]:
    """Spare every victim that the shortage does not need, the last chosen first: it ranks best or has most progress."""
    kept = list(chosen)
    for resident in reversed(chosen):
        others = [other for other in kept if other is not resident]
        if shortage.is_covered_by(others):
            kept = others
    return kept


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
