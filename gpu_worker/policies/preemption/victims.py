"""Whom to evict so that a waiting request fits: as few as do, the least urgent first.

Source: the practitioner's design for tiered preemption, section 2.2: lowest tier first, then least progress, then
fewest preemptions so far. Units: KV blocks, batch slots. Who may be evicted for whom is the policy's word
(`QueuePolicy.precedence`).

Invariants: nobody is evicted where it would not make room; no victim could be spared; none is of a rank that may not be
evicted for this request.

Deviations: the source's choice of several victims forgets whom it makes room for, and can evict premium for anybody;
its count of freed blocks is taken after they were cleared. Here every victim is one that may be evicted for this
request, and what it frees is read before. In a choice of several, those that turn out not to be needed are spared,
which its greedy choice does not look at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.interface import Precedence


@dataclass(frozen=True, slots=True)
class Resident:
    """A running request as an adapter sees it. `blocks`: what evicting it frees. `kv_tokens`: what a swap would move.
    `generated`: its progress, output tokens. `preemptions`: so far. `entered`: in this very pass, so it stays in it."""

    request_id: str
    tier: Tier
    blocks: int
    kv_tokens: int
    generated: int
    preemptions: int = 0
    entered: bool = False


@dataclass(frozen=True, slots=True)
class Shortage:
    """What is missing; not above 0 where nothing is."""

    blocks: int
    slots: int

    @property
    def none(self) -> bool:
        return self.blocks <= 0 and self.slots <= 0

    def relieved_by(self, victims: Iterable[Resident]) -> bool:
        chosen = list(victims)
        return sum(victim.blocks for victim in chosen) >= self.blocks and len(chosen) >= self.slots


def keep_order(
    residents: Iterable[Resident],
    rank: Callable[[str], float],
    protected: Callable[[str], bool],
    lead: Callable[[str], float] | None = None,
) -> list[Resident]:
    """Running requests, those that keep their place the longest first: where one needs a block more and there is none,
    the engine takes it from the last.

    By (protected, rank at admission, most progress), then fewest preemptions and the id, so that it is one order. The
    first always goes on, since nobody stands before it to take from it, and who is evicted keeps its progress: so
    everybody ends. `rank`, `protected`: of a resident, by its id. `lead`: where tenants are to be kept close, the
    service over weight of its tenant, which comes before the progress: an eviction that must be takes from whoever had
    the most.
    """
    return sorted(
        residents,
        key=lambda one: (
            not protected(one.request_id),
            rank(one.request_id),
            lead(one.request_id) if lead is not None else 0.0,
            -one.generated,
            one.preemptions,
            one.request_id,
        ),
    )


def choose_victims(
    shortage: Shortage, residents: Iterable[Resident], precedence: Callable[[str], Precedence | None]
) -> list[Resident] | None:
    """The first to be evicted first; None where no set of them makes room. `precedence` of a resident, by its id."""
    may_leave = [resident for resident in residents if not resident.entered]
    ranked = [(found, resident) for resident in may_leave if (found := precedence(resident.request_id)) is not None]
    ranked.sort(key=lambda pair: _order(*pair))
    chosen: list[Resident] = []
    for _, resident in ranked:
        if shortage.relieved_by(chosen):
            break
        chosen.append(resident)
    return _without_the_spared(shortage, chosen) if shortage.relieved_by(chosen) else None


def _order(precedence: Precedence, resident: Resident) -> tuple[float, float, int, int, str]:
    rank, lead = precedence
    return -rank, -lead, resident.generated, resident.preemptions, resident.request_id


def _without_the_spared(shortage: Shortage, chosen: list[Resident]) -> list[Resident]:
    """Those chosen last are spared first: they rank highest, or have come furthest."""
    kept = list(chosen)
    for resident in reversed(chosen):
        others = [other for other in kept if other is not resident]
        if shortage.relieved_by(others):
            kept = others
    return kept
