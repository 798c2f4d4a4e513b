"""The tokens of a step: which running prefills sit out a step, or get a smaller part of it, for a more urgent request.

A step computes at most so many tokens: one for each request that decodes, and the rest for prompts. A prompt that runs
takes its part, the most urgent first. A newcomer takes what is left, and then from the parts of prompts that it may
take from: the same that it may evict (`QueuePolicy.precedence`: a lower tier, or by `lead_max` a tenant of the same
tier that is further ahead), and of these the one that ranks furthest behind first. A prompt that loses its whole part
is *paused*: it keeps its KV and its slot, so a pause costs nothing but the wait, and comes before an eviction.

Turns. With s_t the share of tier t (TierSettings.shares), if the prompts of a tier got no token in ceil(1 / s_t) - 1
steps in a row, it has its turn: in the next step no newcomer takes from its prompts, and they come before all others.
So while the earliest prompt of a tier with s_t > 0 has T tokens left, and each step has at least C tokens for prompts,
it ends within ceil(T / C) ceil(1 / s_t) steps, whatever comes. A tier without a share has no turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import ceil, inf

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.interface import Precedence
from gpu_worker.policies.tiers import TierSettings


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
    of running requests that no newcomer can take, by request id: those of decodes; they are part of `tokens`."""

    def __init__(
        self,
        tokens: int,
        prefills: Iterable[Prefill],
        turn: Tier | None = None,
        fixed: Mapping[str, int] | None = None,
    ) -> None:
        self.prefills = sorted(prefills, key=lambda prefill: prefill.tier is not turn)
        self._turn = turn
        self._fixed = fixed or {}
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

    def take(self, tokens: int, precedence: Callable[[str], Precedence | None]) -> int:
        """Take up to so many tokens for a newcomer; return how many it gets. What it lacks is its own if it gets free:
        the next newcomer must not evict a request for it."""
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
        candidates = [one for one in reversed(self.prefills) if one.tier is not self._turn]
        return [(found, one) for one in candidates if (found := precedence(one.request_id)) is not None]

    def _share_out(self) -> None:
        for prefill in self.prefills:
            more = max(0, min(prefill.wanted - prefill.part, self._free))
            prefill.part += more
            self._free -= more


class Turns:
    """Counts, for each tier, the steps in a row in which its prompts got no token. Without preemption there are no
    turns: no newcomer takes from a prompt then."""

    def __init__(self, settings: TierSettings) -> None:
        shares = {tier: settings.share(tier) if settings.preemption else 0.0 for tier in Tier}
        self._steps = {tier: ceil(1 / share) if share > 0 else inf for tier, share in shares.items()}
        self._missed: dict[Tier, int] = {}

    @property
    def is_counting(self) -> bool:
        return bool(self._missed)

    def next(self) -> Tier | None:
        """Return the tier that has its turn in this step; of several, the one that missed the most of its turns."""
        due = [tier for tier, missed in self._missed.items() if missed + 1 >= self._steps[tier]]
        return max(due, key=lambda tier: self._missed[tier] / self._steps[tier], default=None)

    def settle(self, tokens: StepTokens) -> dict[str, int]:
        """Settle a step and count it. Return the parts of the prompts that get less than they could take."""
        self.count(prefills := tokens.settle())
        return {prefill.request_id: prefill.part for prefill in prefills if prefill.part < prefill.wanted}

    def count(self, prefills: Iterable[Prefill]) -> None:
        """Count a step with these parts."""
        served: dict[Tier, bool] = {}
        for prefill in prefills:
            served[prefill.tier] = served.get(prefill.tier, False) or prefill.part > 0
        self._missed = {tier: self._missed.get(tier, 0) + 1 for tier, some in served.items() if not some}
