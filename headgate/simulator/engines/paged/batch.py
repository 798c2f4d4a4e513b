"""Who is in the batch of a paged engine: who enters it, who leaves it for that, and who leaves it for want of blocks.

What becomes of a victim:

    swap        copied to host memory and later back (paged/copies.py); then it decodes on
    recompute   its KV is thrown away; when it returns, prompt and generated tokens are prefilled again, which gives
                the next token
    drop        it ends unserved: `rejected` says `dropped`, or `exhausted` where it had been preempted as often as may
                be; a native eviction of such a one ends it likewise
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from gpu_worker.policies.fairness.interface import QueuePolicy
from gpu_worker.policies.preemption.admission import RESERVED_FOR, Admission, Plan
from gpu_worker.policies.preemption.costs import Eviction, Strategy
from gpu_worker.policies.preemption.victims import keep_order
from gpu_worker.policies.scheduling_stats import SchedulingFigures
from headgate.simulator.engines.interface import output_tokens_max
from headgate.simulator.engines.paged.copies import Copies, calibration_of
from headgate.simulator.engines.paged.kv_budget import PagedKvBudget
from headgate.simulator.engines.paged.sequence import Sequence
from headgate.simulator.engines.profile import EngineProfile
from headgate.simulator.requests import SimRequest

Part = tuple[Sequence, int]
"""So many of its tokens are prefilled in a step."""


class PagedBatch:
    """`waiting`: the engine's own, by request id. `ended_early`: those that were dropped, until somebody takes them."""

    def __init__(self, profile: EngineProfile, policy: QueuePolicy, waiting: dict[str, SimRequest]) -> None:
        calibration = calibration_of(profile)
        self.admission = Admission(policy, calibration)
        self.copies = Copies(calibration)
        self.figures = SchedulingFigures()
        self.kv_tokens = 0
        self.ended_early: list[SimRequest] = []
        self._policy = policy
        self._whole_prompts = profile.chunk_tokens is None
        self._extra_tokens = profile.prompt_extra_tokens
        self._waiting = waiting
        self._sequences: dict[str, Sequence] = {}
        self.room = PagedKvBudget(profile, policy, self.admission.settings, self._sequences)

    @property
    def running(self) -> list[Sequence]:
        """In the order in which they entered."""
        return self.room.running

    def could_hold(self, prompt: int, request: SimRequest) -> bool:
        """With nothing else there."""
        return self.room.blocks_of(prompt + max(request.arrival.output_tokens, 1)) <= self._blocks_max(request)

    def waits(self, request: SimRequest) -> None:
        prompt, output = request.arrival.input_tokens + self._extra_tokens, request.arrival.output_tokens
        most = min(self.room.blocks_of(prompt + output_tokens_max(output)), self._blocks_max(request))
        self._sequences[request.request_id] = Sequence(request, prompt, max(output, 1), most, left=prompt)

    def _blocks_max(self, request: SimRequest) -> int:
        return self.admission.blocks_max(request.tier, self.room.blocks_total)

    def ends(self, one: Sequence) -> None:
        self._out(one)
        self._policy.finish(one.request.request_id)
        del self._sequences[one.request.request_id]

    def let_in(
        self, budget: int, now_s: float, pick: Callable[[], Plan | None], *, begun: bool
    ) -> tuple[list[Sequence], list[Part], set[Sequence]]:
        """A pass of admissions: who came, their parts of the step, and who was evicted for them.

        `budget`: prompt tokens of the step; `begun`: others have parts of it already. A prompt that is prefilled whole
        and is longer than the budget is prefilled alone.
        """
        self.admission.begins(now_s)
        self.room.begins()
        came: list[Sequence] = []
        parts: list[Part] = []
        evicted: set[Sequence] = set()
        while budget > 0 and (plan := pick()) is not None:
            one = self._sequences[plan.request.request_id]
            if self._whole_prompts and (begun or parts) and one.left > budget:
                break
            for eviction in plan.evictions:
                evicted.add(self._sequences[eviction.resident.request_id])
                self._evict(eviction, now_s)
            self._enter(one, now_s)
            came.append(one)
            if one.ready_s <= now_s:
                budget = take(parts, one, max(budget, one.left) if self._whole_prompts else budget)
        return came, parts, evicted

    def _enter(self, one: Sequence, now_s: float) -> None:
        self._policy.admit(one.request.request_id)
        del self._waiting[one.request.request_id]
        self.room.enter(one)
        self.kv_tokens += one.held
        if one.preemptions:
            self._resume(one, now_s)

    def _resume(self, one: Sequence, now_s: float) -> None:
        self.figures.resumed += 1
        self.figures.recomputed_tokens += one.lost
        one.lost = 0
        if one.swapped:
            one.swapped = False
            copied = self.copies.swap_in(one.held, now_s)
            one.ready_s = self.copies.in_until_s
            self.figures.swapped_in_bytes += copied
            self.room.swap_bytes_used -= copied

    def _out(self, one: Sequence) -> None:
        self.kv_tokens -= one.held
        self.room.leave(one)

    def _evict(self, eviction: Eviction, now_s: float) -> None:
        """As it was planned."""
        self.figures.evicted(eviction)
        one = self._sequences[eviction.resident.request_id]
        if eviction.strategy is Strategy.DROP:
            self._drop(one, exhausted=eviction.exhausted)
        else:
            self._preempt(one, now_s, swap=eviction.strategy is Strategy.SWAP)

    def _drop(self, one: Sequence, *, exhausted: bool) -> None:
        self.ends(one)
        one.request.rejected = "exhausted" if exhausted else "dropped"
        self.ended_early.append(one.request)

    def _preempt(self, one: Sequence, now_s: float, *, swap: bool) -> None:
        held = one.held
        self._out(one)
        self._policy.preempt(one.request.request_id)
        self._waiting[one.request.request_id] = one.request
        one.preemptions += 1
        if swap:
            one.swapped = True
            copied = self.copies.swap_out(held, now_s)
            self.figures.swapped_out_bytes += copied
            self.room.swap_bytes_used += copied
        else:
            one.left, one.lost = one.length, held

    def grow(self, now_s: float) -> bool:
        """The blocks that the next tokens need; whether somebody was evicted for them."""
        block_tokens = self.room.block_tokens
        wanting = [one for one in self.running if not one.left and one.length > one.blocks * block_tokens]
        if not wanting:
            return False
        if len(wanting) <= min(self.room.spare(one.request.tier) for one in wanting):
            for one in wanting:
                self.room.grow(one, 1)
            return False
        return self._grow_in_order(set(wanting), now_s)

    def _grow_in_order(self, wanting: set[Sequence], now_s: float) -> bool:
        by_id = {one.request.request_id: one for one in self.running}
        residents = [one.resident() for one in self.running]
        close = self.admission.settings.lead_max < inf
        kept = keep_order(
            residents,
            rank=lambda name: by_id[name].rank,
            protected=lambda name: by_id[name].protected,
            lead=(lambda name: self._policy.counter(by_id[name].request.tenant) or 0.0) if close else None,
        )
        order = [by_id[resident.request_id] for resident in kept]
        for one in order:
            if one in wanting:
                while one.blocks and self.room.spare(one.request.tier) < 1:
                    self._evict_natively(self._last(order, one), now_s)
                if one.blocks:
                    self.room.grow(one, 1)
        return len(order) > len(self.running)

    def _last(self, order: list[Sequence], one: Sequence) -> Sequence:
        """Of those whose blocks would be of use to it: where only the reserve is free, those that may not have it."""
        outside = one.request.tier not in RESERVED_FOR and self.room.free > 0
        return next(
            last
            for last in reversed(order)
            if last.blocks and not last.protected and not (outside and last.request.tier in RESERVED_FOR)
        )

    def _evict_natively(self, one: Sequence, now_s: float) -> None:
        self.figures.native += 1
        if self.room.exhausted(one.request.request_id):
            self.figures.exhausted += 1
            self._drop(one, exhausted=True)
        else:
            self._preempt(one, now_s, swap=False)


def take(parts: list[Part], one: Sequence, budget: int) -> int:
    """As much of what it has left as the budget allows; what is left of the budget."""
    tokens = min(one.left, budget)
    if tokens:
        parts.append((one, tokens))
    return budget - tokens
