"""The steps of a paged engine, as vLLM works: KV blocks are taken as tokens come, running requests may be evicted.

Each step:

    grow      each decoding sequence gets the block of its next token; where none is spare the engine evicts, natively,
              the last of `sort_by_protection`, until there is one
    admit     a pass of gpu_worker/policies/admission.py, if one is due and no sequence was just evicted for
              want of blocks
    compute   one token of each decoding sequence, and prompts: with `chunk_tokens` parts of prompts beside the decodes,
              else the whole prompts of all admitted sequences in a step of their own

A newcomer enters with the blocks of its prompt, a sequence that returns also with those of its output so far. Prompts
that are begun come before those of newcomers, the more urgent ones first. Every step is taken; none is skipped.

The model has no clock. A driver gives it the time: the simulator a virtual one, the modelled engine a real one.

    step = model.plan(now_s)
    ...                             until model.end_s(step, now_s)
    for sequence in model.compute(step): each has a new token; end those that are done
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_worker.engines.modelled.paged.batch import PagedBatch, Part, take_part
from gpu_worker.engines.modelled.paged.profile import PagedProfile
from gpu_worker.engines.modelled.paged.sequence import PagedSequence
from gpu_worker.policies.admission import Admission


@dataclass(slots=True)
class Step:
    """`decoding`: sequences that get a token. `parts`: prompt tokens of each sequence that is prefilled. Both are empty
    where the batch waits for a copy, or is empty. `entered`: admitted at the beginning of this step."""

    decoding: list[PagedSequence]
    parts: list[Part]
    entered: list[PagedSequence]

    def remove(self, sequence: PagedSequence) -> None:
        """Compute nothing of a sequence that was aborted while the step ran."""
        self.decoding = [one for one in self.decoding if one is not sequence]
        self.parts = [(one, tokens) for one, tokens in self.parts if one is not sequence]


class PagedModel:
    def __init__(self, profile: PagedProfile, admission: Admission) -> None:
        self.batch = PagedBatch(profile, admission)
        self._profile = profile
        self._policy = admission.policy
        self._since_attempt = 0
        """Steps since the last pass of admissions."""

    def plan(self, now_s: float) -> Step:
        """Evict, admit, and choose what the next step computes."""
        batch = self.batch
        evicted = batch.grow()
        ready = [sequence for sequence in batch.running if sequence.ready_s <= now_s]
        decoding = [sequence for sequence in ready if not sequence.left]
        parts: list[Part] = []
        entered: list[PagedSequence] = []
        step_tokens = self._step_tokens(decoding)
        for sequence in sorted((one for one in ready if one.left), key=lambda one: (not one.protected, one.rank)):
            step_tokens = take_part(parts, sequence, step_tokens)
        if not evicted and (not batch.running or self._since_attempt >= self._profile.steps_between_admissions):
            self._since_attempt = 0
            entered, new_parts, victims = batch.admit(step_tokens, now_s, begun=bool(parts))
            decoding = [sequence for sequence in decoding if sequence not in victims]
            parts = [*((one, tokens) for one, tokens in parts if one not in victims), *new_parts]
        if parts and self._profile.chunk_tokens is None:
            decoding = []
        return Step(decoding, parts, entered)

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
        return max(now_s + factor * seconds, self.batch.copies.out_until_s)

    def compute(self, step: Step) -> list[PagedSequence]:
        """Apply a step that has ended. Return the sequences that have a new token, the decoded ones first."""
        self._decode(step.decoding)
        if step.decoding or self._profile.chunk_tokens is not None:
            self._since_attempt += 1
        for sequence, tokens in step.parts:
            sequence.left -= tokens
            self.batch.kv_tokens += tokens
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
