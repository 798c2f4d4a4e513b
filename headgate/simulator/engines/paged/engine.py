"""A paged engine in virtual time, as vLLM works: KV blocks are taken as tokens come, running requests may be evicted.

Each step:

    grow      whoever decodes gets the block of its next token; where none is spare the engine evicts, natively, the
              last of `keep_order`, until there is one
    admit     a pass of gpu_worker/policies/preemption/admission.py, where it is due and no request was just evicted
              for lack of blocks
    compute   a token of each that decodes, and prompts: with `chunk_tokens` parts of them beside the decodes, as in
              chunked.py; else all that were admitted in a step of their own, as in engine.py

A newcomer enters with the blocks of its prompt, one that returns also with those of what it had
generated. Who leaves, and what becomes of it, is in paged/batch.py. Prompts that are begun come before newcomers',
the more urgent ones first. Step times are those of the profile. Nothing is skipped: every step is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gpu_worker.policies.fairness.interface import QueuePolicy, QueueRequest
from gpu_worker.policies.preemption.admission import Plan
from gpu_worker.policies.scheduling_stats import SchedulingFigures
from headgate.simulator.engines.interface import Engine, Jitter, Observer
from headgate.simulator.engines.paged.batch import PagedBatch, Part, take
from headgate.simulator.engines.paged.sequence import Sequence
from headgate.simulator.engines.profile import EngineProfile
from headgate.simulator.requests import SimRequest


@dataclass(slots=True)
class _Step:
    """`parts`: prompt tokens of each; `decoding`: who gets a token. Neither: it waits for a copy."""

    end_s: float
    decoding: list[Sequence]
    parts: list[Part]


class PreemptiveEngine(Engine):
    def __init__(
        self,
        profile: EngineProfile,
        policy: QueuePolicy,
        *,
        observer: Observer | None = None,
        jitter: Jitter | None = None,
        stopwatch: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(profile, policy, observer=observer, jitter=jitter, stopwatch=stopwatch)
        self.batch = PagedBatch(profile, policy, self._waiting)
        self._since_attempt = 0
        self._step: _Step | None = None

    @property
    def figures(self) -> SchedulingFigures:
        """What was evicted, and how."""
        return self.batch.figures

    @property
    def running(self) -> int:
        return len(self.batch.running)

    @property
    def saturation(self) -> float:
        return 1.0 - self.batch.room.free / self.batch.room.blocks_total

    def next_s(self) -> float:
        if self._step is not None:
            return self._step.end_s
        return self.now_s if self.running or self._waiting else math.inf

    def advance(self, until_s: float) -> list[SimRequest]:
        while True:
            if self._step is None:
                if self.now_s >= until_s or not (self.running or self._waiting):
                    return []
                self._step = self._planned()
                if self.batch.ended_early:
                    ended, self.batch.ended_early = self.batch.ended_early, []
                    return ended
            if self._step.end_s > until_s:
                return []
            if finished := self._taken(self._step):
                return finished

    def submit(self, request: SimRequest, at_s: float) -> bool:
        if not super().submit(request, at_s):
            return False
        self.batch.waits(request)
        return True

    def _may_hold(self, request: SimRequest, prompt: int) -> bool:
        return self.batch.could_hold(prompt, request)

    def _could_hold(self, prompt: int, output: int) -> bool:
        return self.batch.room.blocks_of(prompt + max(output, 1)) <= self.batch.room.blocks_total

    def _enqueue(self, request: QueueRequest, at_s: float) -> bool:
        return self.batch.admission.enqueue(request, at_s)

    def _planned(self) -> _Step:
        short = self.batch.grow(self.now_s)
        ready = [one for one in self.batch.running if one.ready_s <= self.now_s]
        decoding = [one for one in ready if not one.left]
        parts: list[Part] = []
        budget = self._budget(decoding)
        for one in sorted((one for one in ready if one.left), key=lambda one: (not one.protected, one.rank)):
            budget = take(parts, one, budget)
        if not short and (not self.running or self._since_attempt >= self.profile.steps_between_admissions):
            self._since_attempt = 0
            came, new_parts, evicted = self.batch.let_in(budget, self.now_s, self._pick, begun=bool(parts))
            self._told_of(came)
            decoding = [one for one in decoding if one not in evicted]
            parts = [*((one, tokens) for one, tokens in parts if one not in evicted), *new_parts]
        if not self.running:
            raise RuntimeError("the policy admits nobody though nothing runs: the run would never end")
        if parts and self.profile.chunk_tokens is None:
            decoding = []
        return _Step(self._end_s(decoding, parts), decoding, parts)

    def _pick(self) -> Plan | None:
        room = self.batch.room
        if self._stopwatch is None:
            return self.batch.admission.next(room)
        before = self._stopwatch()
        plan = self.batch.admission.next(room)
        self.decision_s.append(self._stopwatch() - before)
        return plan

    def _told_of(self, came: list[Sequence]) -> None:
        """Who is there for the first time."""
        self.decisions += len(came)
        for one in came:
            if not one.preemptions:
                one.request.admitted_s = self.now_s
                if self._observer is not None:
                    self._observer.admitted(one.request, self.now_s)

    def _budget(self, decoding: list[Sequence]) -> int:
        if self.profile.chunk_tokens is None:
            return self.profile.minibatch_tokens_max
        return max(1, self.profile.chunk_tokens - len(decoding))

    def _end_s(self, decoding: list[Sequence], parts: list[Part]) -> float:
        if not decoding and not parts:
            return min(one.ready_s for one in self.batch.running)
        factor = self._jitter.factor(1) if self._jitter is not None else 1.0
        return max(self.now_s + factor * self._step_s(len(decoding), parts), self.batch.copies.out_until_s)

    def _step_s(self, decoding: int, parts: list[Part]) -> float:
        profile = self.profile
        seconds = profile.overhead_s
        if decoding or profile.chunk_tokens is not None:
            seconds += profile.decode_base_s + profile.decode_per_request_s * decoding
            seconds += profile.decode_per_kv_token_s * self.batch.kv_tokens
        if parts:
            seconds += profile.prefill_base_s + profile.prefill_per_token_s * sum(tokens for _, tokens in parts)
        return seconds

    def _taken(self, step: _Step) -> list[SimRequest]:
        """Its tokens are there; who has all of its own ends."""
        self._step = None
        self.now_s = step.end_s
        if step.decoding:
            self._decode(step.decoding)
        if step.decoding or self.profile.chunk_tokens is not None:
            self._since_attempt += 1
        for one, tokens in step.parts:
            one.left -= tokens
            self.batch.kv_tokens += tokens
        begun = [one for one, _ in step.parts if not one.left]
        for one in begun:
            self._generates(one)
        ended = self._ended([*step.decoding, *begun])
        self.kv_tokens = self.batch.kv_tokens
        return ended

    def _decode(self, decoding: list[Sequence]) -> None:
        everybody = len(decoding) == self.running
        self.batch.kv_tokens += len(decoding)
        for one in decoding:
            one.tokens += 1
            if not everybody:
                self.policy.generated(one.request.request_id, one.tokens)
        if everybody:
            self.policy.decoded(1)
        if self._observer is not None:
            self._observer.decoded(1, self.now_s)

    def _generates(self, one: Sequence) -> None:
        """Its prefill gives a token."""
        one.tokens += 1
        self.batch.kv_tokens += 1
        if one.request.arrival.output_tokens:
            self.policy.generated(one.request.request_id, one.tokens)
        if one.tokens == 1:
            one.request.first_token_s = self.now_s
            if self._observer is not None:
                self._observer.prefilled([one.request], self.now_s)

    def _ended(self, computed: list[Sequence]) -> list[SimRequest]:
        ended = [one for one in computed if one.ended]
        for one in ended:
            one.request.finish_s = self.now_s
            self.batch.ends(one)
            if self._observer is not None:
                self._observer.finished(one.request, self.now_s)
        return [one.request for one in ended]
