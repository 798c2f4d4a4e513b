"""An engine in virtual time that prefills in steps of their own. It skips from event to event.

This is the continuous batching of the VTC paper (section 2.1), as the paper's own server does it. The engine attempts
to admit requests every `steps_between_admissions` decode steps, or at once if nothing runs. With
`repeats_failed_attempts`, as in that server, the count begins again only after an attempt that admitted a request; one
that admitted nothing is repeated after each further step (slora/server/router/manager.py, `_step`). The admitted
requests are prefilled as a mini-batch and then join the batch. The policy is the one that the real engines run; only
the time of a step is modelled.

An event is what could change a decision: an attempt to admit, the end of a request, or an arrival. Between two events,
k decode steps of n requests that hold v tokens take

    k (base + overhead + per_request n) + per_kv_token (k v + n k (k - 1) / 2)

and the policy is charged for all k at once. The schedule is the same as step by step; tests compare the two.

With jitter, each step's time is multiplied by a normal factor. For k steps together the factor is drawn with a k-th of
the variance, which is the variance of the mean of k such factors.

Admission is by the peak of future KV use (KvPeak): the requests in the batch, when each ends, and which request still
fits.

Source: the server of the VTC artifact, which knows each request's output length in advance. Sort the requests by
remaining output, longest first. Then use peaks just before one of the requests ends. Before the k-th ends, the first k
are still in the batch and hold

    remaining_k x k + sum of the tokens held by the first k

A request fits if, with it, each of these sums stays below the pool.

In decode steps since the beginning, these sums do not change with time. A request that was admitted at step s with a
prompt of p tokens ends at step e = s + output - 1 (the prefill gives the first token), and holds c + step tokens, where
c = p + 1 - s. So the use before its end is k e_k + c_1 + ... + c_k, whatever the current step is. KvPeak keeps this use
with one more request; a candidate costs one bisection, and a maximum over the requests that end before it.

Where every failed attempt is repeated after the next step, most attempts fail: seven for each request under overload.
So an attempt that failed finds for how many steps it would fail again (`KvPeak.add_if_fits`, and as long as the
policy's head stays, `QueuePolicy.steps_of_head`), and these steps are taken without a new attempt. The arrival of a
tenant that had nothing waiting, or an end, ends this.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from gpu_worker.policies.fairness.interface import QueueRequest
from headgate.simulator.engines.interface import SimulatedEngine
from headgate.simulator.requests import SimRequest

Admitted = tuple[SimRequest, int]
"""A request in the batch, and its prompt tokens."""


class KvPeak:
    def __init__(self, pool_tokens: int) -> None:
        self.pool_tokens = pool_tokens
        self.step = 0
        """Decode steps so far; the engine sets it."""
        self._ends: list[int] = []
        """Minus the step at which each request ends, ascending: the longest remaining output comes first. The lists
        below are in the same order."""
        self._with_one_more: list[int] = []
        """Use before each request's end with one more request, which holds no tokens yet: (k + 1) e_k + sum of c."""
        self._admitted: list[Admitted] = []
        self.size = 0
        """Number of requests."""
        self.next_end = math.inf
        """The step at which the next request ends."""

    def __len__(self) -> int:
        return self.size

    def could_hold(self, prompt: int, output: int) -> bool:
        """Return whether the request fits an empty pool."""
        return prompt + max(output, 1) < self.pool_tokens

    def add_if_fits(self, request: SimRequest, prompt: int, output: int) -> int | None:
        """Add the request if it fits beside those in the batch, and return None. If it does not fit, return for how
        many more steps it surely will not, unless a request ends before.

        Its own peak does not fall until the next request that outlasts it would no longer do so. The peaks of the
        requests that end before it fall by one token a step.
        """
        step, ends, uses = self.step, self._ends, self._with_one_more
        end = step + output - 1 if output > 1 else step
        at = bisect_right(ends, -end)
        # What the first `at` requests hold before step `end`, and `end` itself of one more. The sum of their constants
        # is what `_with_one_more` of the last of them has beyond its own ends.
        own = uses[at - 1] + (at + 1) * (ends[at - 1] + end) if at else end
        later = uses[at:]
        constant = prompt + 1 - step
        limit = self.pool_tokens - constant
        if own >= limit or (later and max(later) >= limit):
            blocked = max(later) - limit if later else 0
            return max(blocked, -ends[at - 1] - end, 0) if at and own >= limit else max(blocked, 0)
        uses[at:] = [use + constant - minus_end for use, minus_end in zip(later, ends[at:], strict=True)]
        uses.insert(at, own + constant + end)
        ends.insert(at, -end)
        self._admitted.insert(at, (request, prompt))
        self.size += 1
        self.next_end = -ends[-1]
        return None

    def take_ended(self) -> list[Admitted]:
        """Remove and return the requests that have ended, the longest output first."""
        ends, first_kept = self._ends, self.size
        minus_step = -self.step
        while first_kept and ends[first_kept - 1] >= minus_step:
            first_kept -= 1
        ended = self._admitted[first_kept:]
        del self._admitted[first_kept:], ends[first_kept:], self._with_one_more[first_kept:]
        self.size = first_kept
        self.next_end = -ends[-1] if ends else math.inf
        return ended


@dataclass(slots=True)
class _Prefill:
    requests: list[SimRequest]
    end_s: float


_Stretch = tuple[int, float]
"""The decode steps until the next attempt to admit or the next end, and their jitter factor."""


class SeparatePrefillEngine(SimulatedEngine):
    def _set_up(self) -> None:
        profile = self.profile
        self._kv = KvPeak(profile.pool_tokens)
        self._steps_between = profile.steps_between_admissions
        self._repeats = profile.repeats_failed_attempts
        self._repeats_each_step = self._repeats or self._steps_between == 1
        self._step_base_s = profile.decode_base_s + profile.overhead_s
        self._per_request_s = profile.decode_per_request_s
        self._per_kv_token_s = profile.decode_per_kv_token_s
        self._since_attempt = 0
        """Decode steps since the last attempt; with `repeats_failed_attempts`, since the last that admitted."""
        self._queued_s = 0.0
        """When the first request came to an empty queue."""
        self._prefill: _Prefill | None = None
        self._stretch: _Stretch | None = None
        self._blocked_until = -1
        """The step up to which every attempt surely fails; -1: unknown."""
        self._blocked_head: tuple[str, int] | None = None
        """The request that did not fit beside the present batch, and the step up to which it surely will not."""

    @property
    def running(self) -> int:
        return self._kv.size

    @property
    def saturation(self) -> float:
        return self.kv_tokens / self.profile.pool_tokens

    def next_s(self) -> float:
        if self._prefill is not None:
            return self._prefill.end_s
        if not self._kv.size:
            return self.now_s if self._waiting else math.inf
        if self._is_attempt_due():
            return self.now_s
        steps, factor = self._next_stretch()
        return self.now_s + factor * self._decode_s(steps)

    def advance(self, until_s: float) -> list[SimRequest]:
        kv = self._kv
        while True:
            if self._prefill is not None:
                if self._prefill.end_s > until_s:
                    return []
                if finished := self._end_prefill(self._prefill):
                    return finished
            elif not kv.size or (self._since_attempt >= self._steps_between and self._is_attempt_due()):
                if self.now_s >= until_s or not (kv.size or self._waiting):
                    return []
                if kv.step > self._blocked_until:
                    self._attempt()
                elif not self._step_until_admissible(until_s):
                    return []
            elif not self._decode(until_s):
                return []
            if kv.next_end <= kv.step and self._prefill is None:
                return self._end_requests()

    def _could_hold(self, request: SimRequest, prompt: int) -> bool:
        return self._kv.could_hold(prompt, request.arrival.output_tokens)

    def _is_attempt_due(self) -> bool:
        """Return whether the batch has decoded for long enough. Repeated attempts at an empty queue are left out."""
        if self._since_attempt < self._steps_between:
            return False
        return not self._repeats or (bool(self._waiting) and self.now_s >= self._queued_s)

    def _enqueue(self, request: SimRequest, at_s: float) -> bool:
        if not super()._enqueue(request, at_s):
            return False
        if self._blocked_until <= self._kv.step or self.policy.waiting_of(request.tenant) == 1:
            self._blocked_until = -1
        if self._repeats and len(self._waiting) == 1:
            self._queued_s = at_s
            self._stretch = None
        return True

    def _attempt(self) -> None:
        """Admit requests in the policy's order until one does not fit."""
        profile, waiting = self.profile, self._waiting
        self._since_attempt = profile.steps_between_admissions - 1 if profile.repeats_failed_attempts else 0
        self._stretch = None
        if self._observer.wants_steps:
            self._observer.on_attempted(self.now_s)
        admitted: list[SimRequest] = []
        tokens = 0
        blocked_id, until = self._blocked_head or ("", -1)
        if until < self._kv.step:
            blocked_id = ""
        blocked_steps = None
        peek = self.policy.peek if self._stopwatch is None else self._peek
        while (head := peek()) is not None and head.request_id != blocked_id:
            request = waiting[head.request_id]
            prompt = head.input_tokens + profile.prompt_extra_tokens
            if admitted and tokens + prompt > profile.minibatch_tokens_max:
                break
            blocked_steps = self._add_if_fits(request, prompt)
            if blocked_steps is not None:
                break
            self._admit(request, prompt)
            admitted.append(request)
            tokens += prompt
        if admitted:
            self._since_attempt = 0
            seconds = profile.prefill_base_s + profile.prefill_per_token_s * tokens + profile.overhead_s
            self._prefill = _Prefill(admitted, self.now_s + seconds * self._jitter_factor(1))
        elif not self._kv.size:
            raise RuntimeError("the policy admits nothing though nothing runs: the run would never end")
        elif head is not None and self._repeats_each_step:
            self._note_blocked(head, blocked_steps)

    def _add_if_fits(self, request: SimRequest, prompt: int) -> int | None:
        """Add the request to the batch, and return None; if it does not fit, for how many more steps it will not."""
        kv, batch_max = self._kv, self.profile.batch_max
        if batch_max is not None and kv.size >= batch_max:
            return int(kv.next_end) - kv.step
        return kv.add_if_fits(request, prompt, request.arrival.output_tokens)

    def _note_blocked(self, head: QueueRequest, blocked_steps: int | None) -> None:
        """Note for how many steps the attempt that failed would fail again. None: the head is the one noted before."""
        step = self._kv.step
        if blocked_steps is not None:
            self._blocked_head = (head.request_id, step + blocked_steps) if blocked_steps else None
        if self._blocked_head is not None:
            self._blocked_until = int(min(self._blocked_head[1], step + self.policy.steps_of_head()))

    def _step_until_admissible(self, until_s: float) -> bool:
        """Take steps one by one while each attempt between them surely fails. False: a step would end too late.

        Each step has the time, and each time the rounding, that it has where the attempt is made.
        """
        kv, observer, now_s, held = self._kv, self._observer, self.now_s, self.kv_tokens
        requests, wants_steps, jitter = kv.size, observer.wants_steps, self._jitter
        without_kv_s = self._step_base_s + self._per_request_s * requests
        last = min(kv.next_end, self._blocked_until + 1)
        first = step = kv.step
        factor = 1.0
        while step < last and now_s < until_s:
            if wants_steps:
                observer.on_attempted(now_s)
            if jitter is not None:
                factor = jitter.factor(1)
            end_s = now_s + factor * (without_kv_s + self._per_kv_token_s * held)
            if end_s > until_s:
                self._stretch = 1, factor
                break
            now_s = end_s
            step += 1
            held += requests
            if wants_steps:
                self.policy.on_decoded(1)
                observer.on_decoded(1, now_s)
        self.now_s, self.kv_tokens, kv.step = now_s, held, step
        self._since_attempt = self.profile.steps_between_admissions - (self._stretch is not None)
        if not wants_steps:
            self.policy.on_decoded(step - first)
        return self._stretch is None

    def _admit(self, request: SimRequest, prompt: int) -> None:
        self.policy.admit(request.request_id)
        del self._waiting[request.request_id]
        self.kv_tokens += prompt
        self.decisions += 1
        request.admitted_s = self.now_s
        self._blocked_until = -1
        self._blocked_head = None
        self._observer.on_admitted(request, self.now_s)

    def _end_prefill(self, prefill: _Prefill) -> list[SimRequest]:
        self._prefill = None
        self.now_s = now_s = prefill.end_s
        on_generated = self.policy.on_generated
        for request in prefill.requests:
            request.first_token_s = now_s
            if request.arrival.output_tokens:
                on_generated(request.request_id, 1)
                self.kv_tokens += 1
        self._observer.on_prefilled(prefill.requests, now_s)
        return self._end_requests() if self._kv.next_end <= self._kv.step else []

    def _next_stretch(self) -> _Stretch:
        if self._stretch is None:
            left = self._steps_between - self._since_attempt
            steps = int(self._kv.next_end) - self._kv.step
            if left < steps and (left > 0 or self._waiting):
                steps = left if left > 1 else 1
            self._stretch = steps, 1.0 if self._jitter is None else self._jitter.factor(steps)
        return self._stretch

    def _decode(self, until_s: float) -> bool:
        """Take as many whole steps of the stretch as end by `until_s`. False: none does."""
        kv, requests = self._kv, self._kv.size
        steps, factor = self._stretch or self._next_stretch()
        held = self.kv_tokens + requests * (steps - 1) / 2  # as in _decode_s, without its call
        seconds = factor * (steps * (self._step_base_s + self._per_request_s * requests + self._per_kv_token_s * held))
        if self.now_s + seconds > until_s:
            steps, seconds = self._steps_within((until_s - self.now_s) / factor, steps)
            if not steps:
                return False
            seconds *= factor
        self._stretch = None
        self.now_s += seconds
        self.kv_tokens += steps * requests
        self._since_attempt += steps
        kv.step += steps
        self.policy.on_decoded(steps)
        if self._observer.wants_steps:
            self._observer.on_decoded(steps, self.now_s)
        return True

    def _decode_s(self, steps: int) -> float:
        requests = self._kv.size
        held = self.kv_tokens + requests * (steps - 1) / 2
        return steps * (self._step_base_s + self._per_request_s * requests + self._per_kv_token_s * held)

    def _steps_within(self, seconds: float, steps: int) -> tuple[int, float]:
        """Return the most steps, fewer than `steps`, that take at most `seconds`, and what they take. No step is
        shorter than the first."""
        requests = self._kv.size
        without_kv_s = self._step_base_s + self._per_request_s * requests
        per_kv_token_s, held = self._per_kv_token_s, self.kv_tokens
        within = min(int(seconds / (without_kv_s + per_kv_token_s * held)) + 1, steps - 1)
        while within:
            taken_s = within * (without_kv_s + per_kv_token_s * (held + requests * (within - 1) / 2))
            if taken_s <= seconds:
                return within, taken_s
            within -= 1
        return 0, 0.0

    def _end_requests(self) -> list[SimRequest]:
        """End the requests that have all their tokens, and return them."""
        now_s, finish, on_finished = self.now_s, self.policy.finish, self._observer.on_finished
        ended = []
        for request, prompt in self._kv.take_ended():
            request.finish_s = now_s
            self.kv_tokens -= prompt + request.arrival.output_tokens
            finish(request.request_id)
            on_finished(request, now_s)
            ended.append(request)
        self._stretch = None
        self._blocked_until = -1
        self._blocked_head = None
        return ended
