"""An engine in virtual time that prefills in steps of their own. It skips from event to event.

This is the continuous batching of the VTC paper (section 2.1), as the paper's own server does it. The engine attempts
to admit requests every `steps_between_admissions` decode steps, or at once if nothing runs. With
`repeats_failed_attempts`, as in that server, the count begins again only after an attempt that admitted a request; one
that admitted nothing is repeated after each further step (slora/server/router/manager.py, `_step`). The admitted
requests are prefilled as a mini-batch and then join the batch. The policy is the one that the real engines run; only
the time of a step is modelled.

An event is an attempt to admit, or the end of a request or a prefill. Between two events, k decode steps of n requests
that hold v tokens take

    k (base + overhead + per_request n) + per_kv_token (k v + n k (k - 1) / 2)

and the policy is charged for all k at once. The schedule is the same as step by step; tests compare the two.

The engine stands at its last event, and knows when the stretch of steps in progress ends. An arrival leaves the stretch
as it is, unless an attempt has to follow. The steps until then are counted only if something may read what they change:
the policy that counts the arrival (`QueuePolicy.ignores_arrival_of`), or a gate (`saturation`, `service_by_tenant`).

With jitter, each step's time is multiplied by a normal factor. For k steps together the factor is drawn with a k-th of
the variance, which is the variance of the mean of k such factors. Then, and for an observer of steps, each arrival ends
a stretch.

Admission is by the peak of future KV use (kv_peak.py). Where every failed attempt is repeated after the next step, most
attempts fail: seven for each request under overload. So an attempt that failed finds for how many steps it would fail
again (`KvPeak.add_if_fits`, and as long as the policy's head stays, `QueuePolicy.steps_of_head`), and these steps are
taken without a new attempt. An arrival that the policy does not ignore, or an end, ends this.
"""

from __future__ import annotations

import math

from gpu_worker.policies.fairness.accounting import TenantService
from headgate.simulator.engines.interface import SILENT, SimulatedEngine
from headgate.simulator.engines.kv_peak import KvPeak
from headgate.simulator.requests import SimRequest

_IDLE = -math.inf


class SeparatePrefillEngine(SimulatedEngine):
    """`now_s`: the time of the last event."""

    def _set_up(self) -> None:
        profile = self.profile
        self._kv = KvPeak(profile.pool_tokens, profile.batch_max)
        self._steps_between = profile.steps_between_admissions
        self._repeats = profile.repeats_failed_attempts
        self._repeats_each_step = self._repeats or self._steps_between == 1
        self._step_base_s = profile.decode_base_s + profile.overhead_s
        self._per_request_s = profile.decode_per_request_s
        self._per_kv_token_s = profile.decode_per_kv_token_s
        self._is_observed = self._observer is not SILENT
        self._follows_steps = self._jitter is not None or self._observer.wants_steps
        """Whether each arrival ends a stretch, and steps between attempts that fail are taken one by one."""
        self._busy_until_s = _IDLE
        """When the prefill or the stretch in progress ends."""
        self._advanced_to_s = 0.0
        self._prefilling: list[SimRequest] = []
        self._steps = 0
        """Decode steps of the stretch that are not counted yet."""
        self._factor = 1.0
        """Jitter factor of the stretch."""
        self._retry_from = 0
        """The decode step from which on an attempt may be made."""
        self._retry_from_s = 0.0
        """The time from which on an attempt may be made."""
        self._next_attempt = 0
        """The decode step of the next attempt: later than `_retry_from` while an attempt would surely fail."""
        self._blocked_until = -1
        """The step up to which every attempt surely fails, only noted with `_follows_steps`; -1: unknown."""
        self._blocked_head: tuple[str, int] | None = None
        """The request that did not fit beside the present batch, and the step up to which it surely will not."""

    @property
    def running(self) -> int:
        return self._kv.size

    @property
    def saturation(self) -> float:
        self._count_steps(self._advanced_to_s)
        return self.kv_tokens / self.profile.pool_tokens

    @property
    def service_by_tenant(self) -> dict[str, TenantService]:
        self._count_steps(self._advanced_to_s)
        return self.policy.received

    def next_s(self) -> float:
        if self._busy_until_s == _IDLE:
            if not self._kv.size:
                return self.now_s if self._queued else math.inf
            if self._is_attempt_due():
                return self.now_s
            self._begin_stretch()
        return self._busy_until_s

    def advance(self, until_s: float) -> list[SimRequest]:
        kv = self._kv
        while True:
            while self._busy_until_s <= until_s:
                if self._prefilling:
                    self._end_prefill()
                elif self._steps:
                    self._count(self._steps, self._busy_until_s)
                elif self.now_s >= until_s or not (kv.size or self._queued):
                    return []
                elif kv.size and (kv.step < self._next_attempt or not self._is_attempt_due()):
                    self._begin_stretch()
                    continue
                elif kv.step > self._blocked_until:
                    self._attempt()
                    continue
                else:
                    self._step_until_admissible(until_s)
                if kv.next_end <= kv.step:
                    return self._end_requests()
            self._advanced_to_s = until_s
            if not (self._follows_steps and self._count_steps(until_s)):
                return []

    def _could_hold(self, request: SimRequest, prompt: int) -> bool:
        return prompt + max(request.arrival.output_tokens, 1) < self.profile.pool_tokens

    def _is_attempt_due(self) -> bool:
        """Return whether the batch has decoded for long enough. Repeated attempts at an empty queue are left out."""
        kv = self._kv
        if not kv.size:
            return True
        if kv.step < self._next_attempt or self.now_s < self._retry_from_s:
            return False
        return not self._repeats or self._queued > 0

    def _enqueue(self, request: SimRequest, at_s: float) -> bool:
        is_ignored = self.policy.ignores_arrival_of(request.arrival.tenant)
        if not is_ignored:
            self._count_steps(at_s)
        if not super()._enqueue(request, at_s):
            return False
        if self._repeats and self._queued == 1:
            self._retry_from_s = at_s
            self._drop_stretch()
        elif not is_ignored:
            self._unblock(at_s)
        return True

    def _unblock(self, at_s: float) -> None:
        """Attempt again after the step that is in progress at `at_s`."""
        self._blocked_until = -1
        if self._next_attempt > self._retry_from:
            self._next_attempt, self._retry_from_s = self._retry_from, at_s
            self._drop_stretch()

    def _attempt(self) -> None:
        """Admit requests in the policy's order until one does not fit."""
        profile, kv = self.profile, self._kv
        if self._observer.wants_steps:
            self._observer.on_attempted(self.now_s)
        admitted: list[SimRequest] = []
        tokens = 0
        blocked_id, until = self._blocked_head or ("", -1)
        if until < kv.step:
            blocked_id = ""
        blocked_steps = None
        peek = self.policy.peek if self._stopwatch is None else self._peek
        while isinstance(request := peek(), SimRequest) and request.request_id != blocked_id:
            prompt = request.input_tokens + profile.prompt_extra_tokens
            if admitted and tokens + prompt > profile.minibatch_tokens_max:
                break
            blocked_steps = kv.add_if_fits(request, prompt, request.arrival.output_tokens)
            if blocked_steps is not None:
                break
            self._admit(request, prompt)
            admitted.append(request)
            tokens += prompt
        if admitted:
            self._begin_prefill(admitted, tokens)
        elif not kv.size:
            raise RuntimeError("the policy admits nothing though nothing runs: the run would never end")
        else:
            self._retry_from = self._next_attempt = kv.step + (1 if self._repeats else self._steps_between)
            if request is not None and self._repeats_each_step:
                self._note_blocked(request, blocked_steps)

    def _note_blocked(self, head: SimRequest, blocked_steps: int | None) -> None:
        """Note for how many steps the attempt that failed would fail again. None: the head is the one noted before."""
        step = self._kv.step
        if blocked_steps is not None:
            self._blocked_head = (head.request_id, step + blocked_steps) if blocked_steps else None
        if self._blocked_head is None:
            return
        blocked_until = int(min(self._blocked_head[1], step + self.policy.steps_of_head()))
        if self._follows_steps:
            self._blocked_until = blocked_until
        else:
            self._next_attempt = max(self._retry_from, blocked_until + 1)

    def _step_until_admissible(self, until_s: float) -> None:
        """Take steps one by one while each attempt between them surely fails, the last of them to its end at most
        `until_s`. Each step has the jitter, and the observer the calls, that it has where the attempt is made."""
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
                self._steps, self._factor, self._busy_until_s = 1, factor, end_s
                break
            now_s = end_s
            step += 1
            held += requests
            if wants_steps:
                self.policy.on_decoded(1)
                observer.on_decoded(1, now_s)
        self.now_s, self.kv_tokens, kv.step = now_s, held, step
        self._retry_from = self._next_attempt = step + self._steps
        if not wants_steps:
            self.policy.on_decoded(step - first)

    def _admit(self, request: SimRequest, prompt: int) -> None:
        self.policy.admit(request.request_id)
        self._queued -= 1
        self.kv_tokens += prompt
        self.decisions += 1
        request.admitted_s = self.now_s
        if self._is_observed:
            self._observer.on_admitted(request, self.now_s)

    def _begin_prefill(self, requests: list[SimRequest], tokens: int) -> None:
        """Prefill the admitted requests, which have so many prompt tokens together."""
        profile = self.profile
        self._prefilling = requests
        seconds = profile.prefill_base_s + profile.prefill_per_token_s * tokens + profile.overhead_s
        self._busy_until_s = self.now_s + seconds * self._jitter_factor(1)
        self._retry_from = self._next_attempt = self._kv.step + self._steps_between
        self._blocked_until = -1
        self._blocked_head = None

    def _end_prefill(self) -> None:
        self.now_s = now_s = self._busy_until_s
        requests, self._prefilling, self._busy_until_s = self._prefilling, [], _IDLE
        on_generated = self.policy.on_generated
        for request in requests:
            request.first_token_s = now_s
            if request.arrival.output_tokens:
                on_generated(request.request_id, 1)
                self.kv_tokens += 1
        self._observer.on_prefilled(requests, now_s)

    def _begin_stretch(self) -> None:
        """Decode until the next attempt or the next end."""
        kv = self._kv
        steps, until_attempt = int(kv.next_end) - kv.step, self._next_attempt - kv.step
        if until_attempt < steps and (until_attempt > 0 or self._queued):
            steps = until_attempt if until_attempt > 1 else 1
        self._steps = steps
        self._factor = 1.0 if self._jitter is None else self._jitter.factor(steps)
        held = self.kv_tokens + kv.size * (steps - 1) / 2
        step_s = self._step_base_s + self._per_request_s * kv.size + self._per_kv_token_s * held
        self._busy_until_s = self.now_s + self._factor * (steps * step_s)

    def _drop_stretch(self) -> None:
        """Plan anew from the last step that was counted."""
        if self._steps:
            self._steps, self._busy_until_s = 0, _IDLE

    def _count_steps(self, until_s: float) -> bool:
        """Count the whole steps of the stretch that end by `until_s`. With `_follows_steps`, drop the rest then, and
        return whether it was dropped."""
        if self._steps <= 1 or until_s <= self.now_s:
            return False
        steps, seconds = self._steps_within((until_s - self.now_s) / self._factor, self._steps)
        if not steps:
            return False
        self._count(steps, self.now_s + seconds * self._factor)
        if self._follows_steps:
            self._drop_stretch()
        return self._follows_steps

    def _count(self, steps: int, now_s: float) -> None:
        """Count so many steps of the stretch, which end at `now_s`."""
        kv = self._kv
        self.now_s = now_s
        self.kv_tokens += steps * kv.size
        kv.step += steps
        self._steps -= steps
        if not self._steps:
            self._busy_until_s = _IDLE
        self.policy.on_decoded(steps)
        if self._observer.wants_steps:
            self._observer.on_decoded(steps, now_s)

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
        now_s, finish = self.now_s, self.policy.finish
        ended = []
        for request, prompt in self._kv.take_ended():
            request.finish_s = now_s
            self.kv_tokens -= prompt + request.arrival.output_tokens
            finish(request.request_id)
            if self._is_observed:
                self._observer.on_finished(request, now_s)
            ended.append(request)
        self._next_attempt = self._retry_from
        self._blocked_until = -1
        self._blocked_head = None
        return ended
