"""The tokens of a step: which running prompts sit out a step, or get a smaller part of it, for a more urgent request.

A step computes at most so many tokens: one for each request that decodes, and the rest for prompts. A prompt that runs
takes its part, the most urgent first. A newcomer takes what is left, and then from the parts of prompts that it may
take from (`QueuePolicy.pause_precedence`: of a lower tier, or by `lead_max` of a tenant of the same tier that is
further ahead), of these from the one that ranks furthest behind first. A prompt that loses its whole part is *paused*:
it keeps its KV and its slot, so a pause costs nothing but the wait, and comes before an eviction.

Rests. A step's time grows with its prompt tokens, and all requests of a step wait for its end. So a running prompt also
sits out a step that has room for it,

- if the step computes a prompt of a more urgent tier: its first token would wait for the longer step;
- if the step decodes a request of a more urgent tier, and no request of a less urgent tier than that waits. While some
  wait, the tokens that a rest leaves unused would be missing for good, and the prompt goes on beside the decodes.

Turns. With s_t the share of tier t (TierSettings.shares), if the prompts of a tier missed ceil(1 / s_t) - 1 steps in a
row (RESTS_MAX without a share), it has its turn: in the next step no newcomer takes from its prompts, they come before
all others, and do not rest. A rest for decodes does not count as a miss; of these there are at most RESTS_MAX before
the tier has a token again. So if the earliest prompt of a tier has T tokens left, and each step has at least C tokens
for prompts, it ends within ceil(T / C) (ceil(1 / s_t) + RESTS_MAX) steps, whatever comes.

FairBatching (arXiv 2510.14392) limits a step's time by what the decodes may wait until their deadlines. Here no request
has a deadline for each token, so the rule is by tier, and by whether work is left undone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import ceil, inf

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.interface import Precedence, QueuePolicy
from gpu_worker.policies.fairness.tiered import TieredQueue

RESTS_MAX = 31
"""Steps that the prompts of a tier may rest for decodes between two of their tokens."""


@dataclass(slots=True, eq=False)
class Prefill:
    """A running request that computes its prompt. `wanted`: the tokens that the step would compute of it; `part`:
    those that it will."""

    request_id: str
    tier: Tier
    wanted: int
    part: int = 0


class StepTokens:
    """The parts of one step. `prefills`: the most urgent first. `turn`: the tier that has its turn. `fixed`: tokens
    of running requests that no newcomer can take, by request id: those of decodes; they are part of `tokens`.
    `are_whole`: each prompt is computed in one step, so that none is paused."""

    def __init__(
        self,
        tokens: int,
        prefills: Iterable[Prefill],
        turn: Tier | None = None,
        fixed: Mapping[str, int] | None = None,
        *,
        are_whole: bool = False,
    ) -> None:
        self.prefills = sorted(prefills, key=lambda prefill: prefill.tier is not turn)
        self.turn = turn
        self.newcomers: set[Tier] = set()
        """The tiers of the newcomers."""
        self._fixed = fixed or {}
        self._are_whole = are_whole
        self._free = tokens - sum(self._fixed.values())
        self._share_out()

    def has_any(self) -> bool:
        """Return whether the step has tokens that some newcomer could take."""
        return self._free > 0 or any(prefill.part for prefill in self.prefills)

    def available(self, precedence: Callable[[str], Precedence | None], victims: Collection[str] = frozenset()) -> int:
        """Return the tokens that a newcomer can take once these victims are gone; what they free goes first to prompts
        that it may not take from. `precedence`: of a running request over it, by request id."""
        left = [prefill for prefill in self.prefills if prefill.request_id not in victims]
        behind = {prefill.request_id for _, prefill in self._behind(precedence)}
        ahead = sum(prefill.wanted - prefill.part for prefill in left if prefill.request_id not in behind)
        free = self._free + self._tokens_of(victims)
        free -= min(max(0, free), ahead)
        return max(0, free + sum(prefill.part for prefill in left if prefill.request_id in behind))

    def take(self, tokens: int, tier: Tier, precedence: Callable[[str], Precedence | None]) -> int:
        """Take up to so many tokens for a newcomer; return how many it gets. What it lacks is its own if it gets free:
        the next newcomer must not evict a request for it."""
        self.newcomers.add(tier)
        taken = min(tokens, max(0, self._free))
        for _, prefill in sorted(self._behind(precedence), key=lambda pair: pair[0], reverse=True):
            part = min(tokens - taken, prefill.part)
            prefill.part -= part
            self._free += part
            taken += part
        self._free -= tokens
        return taken

    def release(self, victims: Collection[str]) -> None:
        """Free the tokens of evicted requests."""
        self._free += self._tokens_of(victims)
        self.prefills = [prefill for prefill in self.prefills if prefill.request_id not in victims]
        self._share_out()

    def settle(self) -> list[Prefill]:
        """Share what is left among the prompts; return all of them with their parts."""
        self._share_out()
        return self.prefills

    def _tokens_of(self, request_ids: Collection[str]) -> int:
        parts = sum(prefill.part for prefill in self.prefills if prefill.request_id in request_ids)
        return parts + sum(self._fixed.get(request_id, 0) for request_id in request_ids)

    def _behind(self, precedence: Callable[[str], Precedence | None]) -> list[tuple[Precedence, Prefill]]:
        """Return the prompts that a newcomer may take from, the least urgent first where they rank the same."""
        if self._are_whole:
            return []
        candidates = [one for one in reversed(self.prefills) if one.tier is not self.turn]
        return [(found, one) for one in candidates if (found := precedence(one.request_id)) is not None]

    def _share_out(self) -> None:
        for prefill in self.prefills:
            more = max(0, min(prefill.wanted - prefill.part, self._free))
            prefill.part += more
            self._free -= more


class Turns:
    """Settles the steps of an engine: which prompts rest, and which tier has its turn. Without preemption no prompt
    rests, and there are no turns: no newcomer takes from a prompt then."""

    def __init__(self, policy: QueuePolicy) -> None:
        self._tiers = policy if isinstance(policy, TieredQueue) and policy.settings.preemption else None
        self._missed: dict[Tier, int] = {}
        self._rested: dict[Tier, int] = {}
        """Steps since the prompts of a tier had a token, missed ones and rests for decodes."""

    def next(self) -> Tier | None:
        """Return the tier that has its turn in this step; of several, the one that missed the most of its turns."""
        due = [tier for tier, missed in self._missed.items() if missed + 1 >= self._steps_of(tier)]
        return max(due, key=lambda tier: self._missed[tier] / self._steps_of(tier), default=None)

    def settle(self, tokens: StepTokens, decoding: Iterable[Tier]) -> list[Prefill]:
        """Settle a step in which requests of these tiers decode. Return the running prompts with their parts."""
        prefills = tokens.settle()
        resting = self._rest(tokens, decoding) if self._tiers is not None else set()
        self._count(prefills, resting)
        return prefills

    def _steps_of(self, tier: Tier) -> float:
        """Return the steps in which a tier has its turn at least once."""
        if self._tiers is None:
            return inf
        share = self._tiers.settings.share(tier)
        return ceil(1 / share) if share > 0 else RESTS_MAX + 1

    def _rest(self, tokens: StepTokens, decoding: Iterable[Tier]) -> set[Tier]:
        """Let prompts rest. Return the tiers with prompts that rest for decodes."""
        prompts = _most_urgent(tokens.newcomers | {prefill.tier for prefill in tokens.prefills if prefill.part})
        decodes = _most_urgent(decoding)
        may_rest = not self._waits_below(decodes)
        resting = set()
        for prefill in tokens.prefills:
            if prefill.tier is tokens.turn:
                continue
            if prefill.tier.rank > prompts:
                prefill.part = 0
            elif may_rest and prefill.part and prefill.tier.rank > decodes and self._may_rest(prefill.tier):
                prefill.part = 0
                resting.add(prefill.tier)
        return resting

    def _may_rest(self, tier: Tier) -> bool:
        return self._rested.get(tier, 0) < RESTS_MAX

    def _waits_below(self, rank: float) -> bool:
        """Return whether a request of a less urgent tier waits."""
        tiers = self._tiers
        return tiers is not None and any(tier.rank > rank and tiers.waiting_in(tier) for tier in tiers.by_tier)

    def _count(self, prefills: Iterable[Prefill], resting: Collection[Tier]) -> None:
        served = {prefill.tier for prefill in prefills if prefill.part}
        left = {prefill.tier for prefill in prefills} - served
        self._missed = {tier: self._missed.get(tier, 0) + (tier not in resting) for tier in left}
        self._rested = {tier: self._rested.get(tier, 0) + (tier in resting) for tier in left}


def _most_urgent(tiers: Iterable[Tier]) -> float:
    """Return the rank of the most urgent tier; infinity of none."""
    return min((tier.rank for tier in tiers), default=inf)
