"""Choose the victims of a waiting request: as few running requests as possible, the least urgent first.

Source: docs/preemption-design.md, section 2.2: the lowest tier first, then the least progress, then the fewest
preemptions so far. Units: KV blocks and batch slots. `QueuePolicy.precedence` decides which running request may be
evicted for which waiting one.

Invariants: no request is evicted unless the evictions make enough room; every victim is needed; every victim may be
evicted for this request.

Deviations: when the source chooses several victims, it ignores the rank of the waiting request, so that premium can be
evicted for any request; and it counts the freed blocks after they were cleared. Here every victim may be evicted for
this request, and its blocks are counted before the eviction. The source's greedy choice may also include victims that
later choices make unnecessary; here these are spared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.interface import Precedence


@dataclass(frozen=True, slots=True)
class Resident:
    """A running request with its KV blocks, as an engine adapter sees it.

    `blocks`: KV blocks that its eviction frees. `kv_tokens`: tokens that a swap copies. `generated`: its output tokens
    so far. `preemptions`: how often it was preempted. `entered`: it was admitted in this pass, so it is no victim.
    """

    request_id: str
    tier: Tier
    blocks: int
    kv_tokens: int
    generated: int
    preemptions: int = 0
    entered: bool = False


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
    shortage: Shortage, residents: Iterable[Resident], precedence: Callable[[str], Precedence | None]
) -> list[Resident] | None:
    """Return the victims in the order of their eviction; None if no allowed set of victims covers the shortage.

    `precedence`: of a running request over the waiting one, by request id; None if it must not be evicted.
    """
    candidates = [resident for resident in residents if not resident.entered]
    ranked = [(found, resident) for resident in candidates if (found := precedence(resident.request_id)) is not None]
    ranked.sort(key=lambda pair: _order(*pair))
    chosen: list[Resident] = []
    for _, resident in ranked:
        if shortage.is_covered_by(chosen):
            break
        chosen.append(resident)
    return _needed_victims(shortage, chosen) if shortage.is_covered_by(chosen) else None


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
