"""The steps of a paged engine, as vLLM works: KV blocks are taken as tokens come, running requests may be evicted.

Each step:

    grow      each decoding sequence gets the block of its next token; where none is spare the engine evicts, natively,
              the last of `sort_by_protection`, until there is one
    admit     a pass of gpu_worker/policies/admission.py, if one is due and no sequence was just evicted for
              want of blocks
    compute   one token of each decoding sequence, and prompts: with `chunk_tokens` parts of prompts beside the decodes,
              else the whole prompts of all admitted sequences in a step of their own

What happens to a victim:

    swap        its KV is copied to host memory and later back (Copies); then it decodes on
    recompute   its KV is thrown away; when it returns, prompt and output so far are prefilled again, which gives the
                next token
    drop        it ends unserved. `exhausted`: because it was preempted as often as the settings allow; a native
                eviction ends such a sequence too

A newcomer enters with the blocks of its prompt, a sequence that returns also with those of its output so far. Prompts
that are begun come before those of newcomers, the more urgent ones first. Every step is taken; none is skipped.

With a prefix cache (prefix_cache.py), a sequence that enters without KV does not compute what is cached of its prompt,
and the policy charges these tokens at its `cached_fraction`. With `locality` the policy prefers such sequences. With
places for LoRA adapters (adapters.py), a step in which adapters are loaded takes longer.

The model has no clock. A driver gives it the time: the simulator a virtual one, the modelled engine a real one.

    step = model.plan(now_s)
    ...                             until model.end_s(step, now_s)
    for sequence in model.compute(step): each has a new token; end those that are done
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from gpu_worker.engines.modelled.paged.adapters import PagedAdapters
from gpu_worker.engines.modelled.paged.kv_budget import PagedKvBudget, PagedSequence
from gpu_worker.engines.modelled.paged.prefix_cache import PrefixCache
from gpu_worker.engines.modelled.paged.profile import Copies, PagedProfile
from gpu_worker.policies.admission import RESERVED_FOR, Admission, AdmissionPlan
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.loaded_first import LoadedFirst
from gpu_worker.policies.fairness.locality import PrefixLookups
from gpu_worker.policies.preemption import Eviction, Strategy, sort_by_protection
from gpu_worker.policies.scheduling_stats import SchedulingStats
from gpu_worker.policies.step_tokens import Prefill, StepTokens, Turns

_Part = tuple[PagedSequence, int]
"""A sequence, and how many of its tokens a step prefills."""


class PagedBatch:
    """The batch: which sequences enter, and which leave for others or for want of blocks.

    `sequences`: all of the model, waiting and running, by request id. `dropped`: those that ended unserved since the
    last `take_dropped`. `kv_tokens`: tokens in the cache.
    """

    def __init__(self, profile: PagedProfile, admission: Admission) -> None:
        self.admission = admission
        self.copies = Copies(admission.calibration)
        self.counts = SchedulingStats()
        self.sequences: dict[str, PagedSequence] = {}
        self.kv_budget = PagedKvBudget(profile, admission, self.sequences)
        self.kv_tokens = 0
        self.dropped: list[PagedSequence] = []
        self.loads = 0
        """Adapters that the last pass of admissions loaded."""
        self._policy = admission.policy
        self._whole_prompts = profile.chunk_tokens is None
        self._extra_tokens = profile.prompt_extra_tokens
        self._prefixes = PrefixCache(profile.prefix_cache_tokens, profile.prefix_block_tokens)
        self._adapters = None
        if profile.max_loras is not None:
            lead = admission.settings.adapter_lead
            self._adapters = PagedAdapters(profile.max_loras, self._policy, lead, self.sequences, self.running)
            self.kv_budget.holders = self._adapters.holders
        self._lookups: PrefixLookups | None = None
        if profile.prefix_cache_tokens and self._policy.locality:
            self._lookups = PrefixLookups(self._cached_tokens, lookups_max=self._policy.lookups_max)
            self._policy.use_lookups(self._lookups)
        if self._policy.loaded_first:
            self.load_first()

    @property
    def running(self) -> list[PagedSequence]:
        """The running sequences in the order in which they entered."""
        return self.kv_budget.running

    @property
    def waiting(self) -> int:
        return len(self.sequences) - len(self.running)

    def load_first(self) -> None:
        """Let requests with loaded adapters go first within their tenant from now on (loaded_first.py)."""
        if self._adapters is not None:
            needs_no_load = self._adapters.needs_no_load
            by_prefix = self._lookups is not None
            self._lookups = LoadedFirst(needs_no_load, self._cached_tokens) if by_prefix else LoadedFirst(needs_no_load)
            self._policy.use_lookups(self._lookups)

    def enqueue(
        self, request: QueueRequest, now_s: float, prefix: Sequence[Hashable] = (), adapter: str | None = None
    ) -> PagedSequence | None:
        """Add a request that arrives. It ends after its `output_tokens` where they are known, else after the most.
        `prefix`: the keys of its blocks in the prefix cache. `adapter`: it counts only where there are places for
        adapters. None: the policy refuses it."""
        if not self.admission.enqueue(request, now_s):
            return None
        prompt, output_most = request.input_tokens + self._extra_tokens, request.output_tokens_max or 1
        output = output_most if request.output_tokens is None else max(request.output_tokens, 1)
        most = self.admission.blocks_max(request.tier, self.kv_budget.blocks_total)
        blocks_most = min(self.kv_budget.blocks_of(prompt + output_most), most)
        sequence = PagedSequence(request, prompt, output, blocks_most, left=prompt, prefix=prefix)
        sequence.adapter = None if self._adapters is None else adapter
        self.sequences[request.request_id] = sequence
        return sequence

    def expired(self, now_s: float) -> list[str]:
        """Return the requests that are past their deadline, each once. The driver aborts them."""
        self.admission.begin_pass(now_s)
        found = self.admission.pop_expired()
        self.counts.expired += len(found)
        return found

    def end(self, sequence: PagedSequence) -> None:
        """Remove a running sequence that is done or aborted. One that ends before its first token is charged for the
        prompt tokens that were computed."""
        self._out(sequence)
        if sequence.left and not sequence.tokens:
            computed = min(sequence.held, sequence.request.input_tokens)
            self._policy.on_prompt_counted(sequence.request.request_id, computed)
        self._policy.finish(sequence.request.request_id)
        del self.sequences[sequence.request.request_id]

    def cancel(self, sequence: PagedSequence) -> None:
        """Remove a waiting sequence."""
        self.kv_budget.swap_bytes_used -= sequence.swap_bytes
        if self._adapters is not None:
            self._adapters.cancel(sequence.request.request_id)
        self._policy.cancel(sequence.request.request_id)
        del self.sequences[sequence.request.request_id]

    def take_dropped(self) -> list[PagedSequence]:
        dropped, self.dropped = self.dropped, []
        return dropped

    def admit(
        self, step_tokens: StepTokens, now_s: float, *, begun: bool
    ) -> tuple[list[PagedSequence], list[_Part], set[PagedSequence]]:
        """Run a pass of admissions. Return the sequences that entered, their parts of the step, and the victims.

        `begun`: other sequences have parts of the step already. A prompt that is prefilled whole and is longer than
        what the step can take is prefilled alone.
        """
        self.admission.begin_pass(now_s)
        self.kv_budget.begin_pass(step_tokens)
        if self._lookups is not None:
            self._lookups.begin_pass()
        if self._adapters is not None:
            self._adapters.begin_pass()
        entered: list[PagedSequence] = []
        parts: list[_Part] = []
        victims: set[PagedSequence] = set()
        while step_tokens.has_any() and (plan := self._next_plan()) is not None:
            sequence = self.sequences[plan.request.request_id]
            precedence = partial(self._policy.pause_precedence, plan.request)
            if self._whole_prompts and (begun or parts) and sequence.left > step_tokens.available(precedence):
                break
            evicted = {self.sequences[eviction.resident.request_id] for eviction in plan.evictions}
            for eviction in plan.evictions:
                self._evict(eviction, now_s)
            step_tokens.release([eviction.resident.request_id for eviction in plan.evictions])
            victims |= evicted
            self._enter(sequence, now_s)
            entered.append(sequence)
            if sequence.ready_s <= now_s and sequence.left:
                part = step_tokens.take(sequence.left, plan.request.tier, precedence)
                parts.append((sequence, sequence.left if self._whole_prompts else part))
        self.loads = 0 if self._adapters is None else self._adapters.end_pass(entered)
        return entered, parts, victims

    def _next_plan(self) -> AdmissionPlan | None:
        adapters, admission = self._adapters, self.admission
        if adapters is not None and not adapters.hold_back(lambda head: admission.is_passed_over(head, self.kv_budget)):
            return None
        return admission.next_plan(self.kv_budget)

    def _enter(self, sequence: PagedSequence, now_s: float) -> None:
        self._policy.admit(sequence.request.request_id)
        if sequence.prefix and not sequence.held:
            self._reuse_prefix(sequence)
        self.kv_budget.enter(sequence)
        self.kv_tokens += sequence.held
        if sequence.preemptions:
            self._resume(sequence, now_s)

    def _cached_tokens(self, request_id: str) -> int:
        sequence = self.sequences[request_id]
        return self._prefixes.cached_tokens(sequence.prefix, sequence.request.input_tokens)

    def _reuse_prefix(self, sequence: PagedSequence) -> None:
        """Skip what is cached of a prompt that enters, renew its blocks, and tell the policy."""
        tokens = self._cached_tokens(sequence.request.request_id)
        self._prefixes.add(sequence.prefix[: tokens // self._prefixes.block_tokens])
        sequence.left -= tokens
        sequence.lost = max(0, sequence.lost - tokens)
        if not sequence.preemptions:
            sequence.cached = tokens
        self._policy.on_cached(sequence.request.request_id, tokens)

    def keep_prefix(self, sequence: PagedSequence) -> None:
        """Add the whole blocks of a prompt that are computed by now to the prefix cache."""
        computed = min(sequence.held, sequence.request.input_tokens)
        self._prefixes.add(sequence.prefix[: computed // self._prefixes.block_tokens])

    def _resume(self, sequence: PagedSequence, now_s: float) -> None:
        self.counts.resumed += 1
        self.counts.recomputed_tokens += sequence.lost
        if sequence.predicted_s is not None:
            again_s = self.admission.calibration.prefill_s(sequence.lost)
            self.counts.record_cost(Strategy.RECOMPUTE, predicted_s=sequence.predicted_s, measured_s=again_s)
        if sequence.swap_bytes:
            self.copies.swap_in(sequence.held, now_s)
            sequence.ready_s = self.copies.in_until_s
            self.counts.swapped_in_bytes += sequence.swap_bytes
            self.kv_budget.swap_bytes_used -= sequence.swap_bytes
        sequence.lost, sequence.predicted_s, sequence.swap_bytes = 0, None, 0.0

    def _out(self, sequence: PagedSequence) -> None:
        self.kv_tokens -= sequence.held
        self.kv_budget.leave(sequence)

    def _evict(self, eviction: Eviction, now_s: float) -> None:
        """Evict by the strategy of the plan."""
        self.counts.count_eviction(eviction)
        sequence = self.sequences[eviction.resident.request_id]
        if eviction.strategy is Strategy.DROP:
            self._drop(sequence, exhausted=eviction.exhausted)
        elif eviction.strategy is Strategy.SWAP:
            self._swap_out(sequence, now_s)
        else:
            self._throw_away(sequence)
            sequence.predicted_s = eviction.predicted_s

    def _drop(self, sequence: PagedSequence, *, exhausted: bool) -> None:
        self.end(sequence)
        sequence.exhausted = exhausted
        self.dropped.append(sequence)

    def _swap_out(self, sequence: PagedSequence, now_s: float) -> None:
        sequence.swap_bytes = self.copies.swap_out(sequence.held, now_s)
        self.counts.swapped_out_bytes += sequence.swap_bytes
        self.kv_budget.swap_bytes_used += sequence.swap_bytes
        self._preempt(sequence)

    def _throw_away(self, sequence: PagedSequence) -> None:
        sequence.lost = sequence.held
        self._preempt(sequence)
        sequence.left = sequence.length

    def _preempt(self, sequence: PagedSequence) -> None:
        self._out(sequence)
        self._policy.preempt(sequence.request.request_id)
        sequence.preemptions += 1

    def grow(self) -> bool:
        """Take the blocks of the next tokens. Return whether a sequence was evicted natively for them."""
        block_tokens = self.kv_budget.block_tokens
        wanting = [one for one in self.running if not one.left and one.length > one.blocks * block_tokens]
        if not wanting:
            return False
        if len(wanting) <= min(self.kv_budget.spare(sequence.request.tier) for sequence in wanting):
            for sequence in wanting:
                self.kv_budget.grow(sequence, 1)
            return False
        return self._grow_in_order(set(wanting))

    def _grow_in_order(self, wanting: set[PagedSequence]) -> bool:
        by_id = {sequence.request.request_id: sequence for sequence in self.running}
        close = self.admission.settings.lead_max < inf
        kept = sort_by_protection(
            [sequence.resident() for sequence in self.running],
            rank=lambda name: by_id[name].rank,
            protected=lambda name: by_id[name].protected,
            lead=(lambda name: self._policy.counter(by_id[name].request.tenant) or 0.0) if close else None,
        )
        order = [by_id[resident.request_id] for resident in kept]
        for sequence in order:
            if sequence in wanting:
                while sequence.blocks and self.kv_budget.spare(sequence.request.tier) < 1:
                    self._evict_natively(self._last(order, sequence))
                if sequence.blocks:
                    self.kv_budget.grow(sequence, 1)
        return len(order) > len(self.running)

    def _last(self, order: list[PagedSequence], wanting: PagedSequence) -> PagedSequence:
        """Return the last sequence with blocks that `wanting` may use: if only reserved blocks are free, one of a tier
        that may not use them."""
        outside = wanting.request.tier not in RESERVED_FOR and self.kv_budget.free > 0
        return next(
            last
            for last in reversed(order)
            if last.blocks and not last.protected and not (outside and last.request.tier in RESERVED_FOR)
        )

    def _evict_natively(self, sequence: PagedSequence) -> None:
        self.counts.native += 1
        if self.kv_budget.exhausted(sequence.request.request_id):
            self.counts.exhausted += 1
            self._drop(sequence, exhausted=True)
        else:
            self._throw_away(sequence)


@dataclass(slots=True)
class Step:
    """`decoding`: sequences that get a token. `parts`: prompt tokens of each sequence that is prefilled. Both are empty
    where the batch waits for a copy, or is empty. `entered`: admitted at the beginning of this step. `loads`: adapters
    that are loaded before it."""

    decoding: list[PagedSequence]
    parts: list[_Part]
    entered: list[PagedSequence]
    loads: int = 0

    def remove(self, sequence: PagedSequence) -> None:
        """Compute nothing of a sequence that was aborted while the step ran."""
        self.decoding = [one for one in self.decoding if one is not sequence]
        self.parts = [(one, tokens) for one, tokens in self.parts if one is not sequence]


def _prefill(sequence: PagedSequence) -> Prefill:
    return Prefill(sequence.request.request_id, sequence.request.tier, sequence.left)


class PagedModel:
    def __init__(self, profile: PagedProfile, admission: Admission) -> None:
        self.batch = PagedBatch(profile, admission)
        self._profile = profile
        self._policy = admission.policy
        self._since_attempt = 0
        """Steps since the last pass of admissions."""
        self._turns = Turns(admission.policy)

    def plan(self, now_s: float) -> Step:
        """Evict, admit, and choose what the next step computes."""
        batch = self.batch
        evicted = batch.grow()
        ready = [sequence for sequence in batch.running if sequence.ready_s <= now_s]
        decoding = [sequence for sequence in ready if not sequence.left]
        new_parts: list[_Part] = []
        entered: list[PagedSequence] = []
        loads = 0
        begun = sorted((one for one in ready if one.left), key=lambda one: (not one.protected, one.rank))
        whole = self._profile.chunk_tokens is None
        turn = self._turns.next()
        step_tokens = StepTokens(self._step_tokens(decoding), map(_prefill, begun), turn, are_whole=whole)
        if not evicted and (not batch.running or self._since_attempt >= self._profile.steps_between_admissions):
            self._since_attempt = 0
            entered, new_parts, victims = batch.admit(step_tokens, now_s, begun=bool(begun))
            loads = batch.loads
            decoding = [sequence for sequence in decoding if sequence not in victims]
        settled = self._settle(step_tokens, decoding)
        parts = [*((batch.sequences[one.request_id], one.part) for one in settled if one.part), *new_parts]
        if parts and self._profile.chunk_tokens is None:
            decoding = []
        return Step(decoding, parts, entered, loads)

    def _settle(self, step_tokens: StepTokens, decoding: Iterable[PagedSequence]) -> list[Prefill]:
        """Return the parts of the prompts that were begun. Whole prompts have steps of their own: none rests."""
        if self._profile.chunk_tokens is None:
            return step_tokens.settle()
        tiers = {sequence.request.tier for sequence in decoding} if step_tokens.prefills else ()
        return self._turns.settle(step_tokens, tiers)

    def _step_tokens(self, decoding: list[PagedSequence]) -> int:
        """Return the prompt tokens that a step can take beside these decodes."""
        if self._profile.chunk_tokens is None:
            return self._profile.minibatch_tokens_max
        return max(1, self._profile.chunk_tokens - len(decoding))

    def end_s(self, step: Step, now_s: float, factor: float = 1.0) -> float:
        """Return when a step that begins now ends: not before the copies out, which its writes follow. A batch that
        only waits for a copy ends with it. `factor`: of the step's time."""
        if self.batch.running and not step.decoding and not step.parts:
            return min(sequence.ready_s for sequence in self.batch.running)
        prompt_tokens = sum(tokens for _, tokens in step.parts)
        seconds = self._profile.step_s(len(step.decoding), prompt_tokens, self.batch.kv_tokens)
        seconds += step.loads * self._profile.adapter_load_s
        return max(now_s + factor * seconds, self.batch.copies.out_until_s)

    def compute(self, step: Step) -> list[PagedSequence]:
        """Apply a step that has ended. Return the sequences that have a new token, the decoded ones first."""
        self._decode(step.decoding)
        if step.decoding or self._profile.chunk_tokens is not None:
            self._since_attempt += 1
        for sequence, tokens in step.parts:
            sequence.left -= tokens
            self.batch.kv_tokens += tokens
            if sequence.prefix:
                self.batch.keep_prefix(sequence)
        prefilled = [sequence for sequence, _ in step.parts if not sequence.left]
        for sequence in prefilled:
            self._generate_first(sequence)
        return [*step.decoding, *prefilled]

    def _decode(self, decoding: list[PagedSequence]) -> None:
        all_decode = len(decoding) == len(self.batch.running)
        self.batch.kv_tokens += len(decoding)
        for sequence in decoding:
            sequence.tokens += 1
            if not all_decode:
                self._policy.on_generated(sequence.request.request_id, sequence.tokens)
        if decoding and all_decode:
            self._policy.on_decoded(1)

    def _generate_first(self, sequence: PagedSequence) -> None:
        """Count the token that a prefill gives; a request for no output is not charged for it."""
        sequence.tokens += 1
        self.batch.kv_tokens += 1
        if sequence.request.output_tokens != 0:
            self._policy.on_generated(sequence.request.request_id, sequence.tokens)
