"""An engine in virtual time with chunked prefill. Each step computes one token of every decoding request and, with the
rest of the step's `chunk_tokens`, parts of prompts.

Decodes come first, then prompts already started, then new requests in the policy's order, as in real engines of this
kind. A new request is admitted only if its prompt and its whole output fit beside the reservations of the running
requests, so that no request is ever evicted. A step takes

    base + overhead + per_request x decoding + per_kv_token x KV held
    + prefill_base where there are prompt tokens + prefill_per_token x prompt tokens

Steps in which only decodes run, while no request waits, are taken together (see separate_prefill.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headgate.simulator.engines.interface import SimulatedEngine
from headgate.simulator.requests import SimRequest


@dataclass(slots=True, eq=False)
class _Running:
    request: SimRequest
    prompt: int
    prompt_left: int
    tokens: int = 0

    @property
    def reserved(self) -> int:
        return self.prompt + max(self.request.arrival.output_tokens, 1)

    @property
    def left(self) -> int:
        return max(self.request.arrival.output_tokens, 1) - self.tokens


@dataclass(slots=True)
class _Step:
    """`parts`: prompt tokens of each request; `steps`: number of equal steps, 1 if there are parts."""

    end_s: float
    steps: int
    factor: float
    parts: list[tuple[_Running, int]]


class ChunkedPrefillEngine(SimulatedEngine):
    """Raises ValueError if its profile has no `chunk_tokens`."""

    def _set_up(self) -> None:
        if self.profile.chunk_tokens is None:
            raise ValueError(f"profile {self.profile.name!r} has no chunk_tokens")
        self._chunk_tokens = self.profile.chunk_tokens
        self._decoding: list[_Running] = []
        self._prefilling: list[_Running] = []
        self._reserved = 0
        self._step: _Step | None = None

    @property
    def running(self) -> int:
        return len(self._decoding) + len(self._prefilling)

    @property
    def saturation(self) -> float:
        return self._reserved / self.profile.pool_tokens

    def next_s(self) -> float:
        if self._step is None:
            return self.now_s if self.running or self._queued else math.inf
        return self._step.end_s

    def advance(self, until_s: float) -> list[SimRequest]:
        while True:
            if self._step is None:
                if self.now_s >= until_s or not (self.running or self._queued):
                    return []
                self._step = self._plan_step()
            if self._step.end_s > until_s and not self._cut_short(self._step, until_s):
                return []
            if finished := self._finish_step(self._step):
                return finished

    def _could_hold(self, request: SimRequest, prompt: int) -> bool:
        return prompt + max(request.arrival.output_tokens, 1) <= self.profile.pool_tokens

    def _plan_step(self) -> _Step:
        budget = max(1, self._chunk_tokens - len(self._decoding))
        parts: list[tuple[_Running, int]] = []
        for running in self._prefilling:
            budget = _take(parts, running, budget)
        while budget and (admitted := self._admit_next()) is not None:
            budget = _take(parts, admitted, budget)
        if not parts and not self._decoding:
            raise RuntimeError("the policy admits nothing though nothing runs: the run would never end")
        steps = 1 if parts or self._queued else min(running.left for running in self._decoding)
        factor = self._jitter_factor(steps)
        return _Step(self.now_s + factor * self._step_s(steps, parts), steps, factor, parts)

    def _admit_next(self) -> _Running | None:
        request = self._peek()
        if request is None or (self.profile.batch_max is not None and self.running >= self.profile.batch_max):
            return None
        prompt = request.input_tokens + self.profile.prompt_extra_tokens
        running = _Running(request, prompt, prompt)
        if self._reserved + running.reserved > self.profile.pool_tokens:
            return None
        self.policy.admit(request.request_id)
        self._queued -= 1
        self._reserved += running.reserved
        self._prefilling.append(running)
        self.decisions += 1
        request.admitted_s = self.now_s
        self._observer.on_admitted(request, self.now_s)
        return running

    def _step_s(self, steps: int, parts: list[tuple[_Running, int]]) -> float:
        profile, decoding = self.profile, len(self._decoding)
        held = steps * self.kv_tokens + decoding * steps * (steps - 1) / 2
        each = profile.decode_base_s + profile.overhead_s + profile.decode_per_request_s * decoding
        seconds = steps * each + profile.decode_per_kv_token_s * held
        if parts:
            seconds += profile.prefill_base_s + profile.prefill_per_token_s * sum(tokens for _, tokens in parts)
        return seconds

    def _cut_short(self, step: _Step, until_s: float) -> bool:
        """Shorten it to the whole steps that end by `until_s`, at least one. False: the first ends later."""
        low, high = 0, step.steps
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._end_s(step, middle) <= until_s else (low, middle)
        step.steps = max(low, 1)
        step.end_s = self._end_s(step, step.steps)
        return step.end_s <= until_s

    def _end_s(self, step: _Step, steps: int) -> float:
        return self.now_s + step.factor * self._step_s(steps, step.parts)

    def _finish_step(self, step: _Step) -> list[SimRequest]:
        self._step = None
        self.now_s = step.end_s
        self._decode(step)
        self._prefill_parts(step)
        return self._end_requests()

    def _decode(self, step: _Step) -> None:
        self.kv_tokens += step.steps * len(self._decoding)
        for running in self._decoding:
            running.tokens += step.steps
            self.policy.on_generated(running.request.request_id, running.tokens)
        if self._decoding:
            self._observer.on_decoded(step.steps, self.now_s)

    def _prefill_parts(self, step: _Step) -> None:
        done = []
        for running, tokens in step.parts:
            running.prompt_left -= tokens
            self.kv_tokens += tokens
            if not running.prompt_left:
                self._prefilling.remove(running)
                self._decoding.append(running)
                self._first_token(running)
                done.append(running.request)
        if done:
            self._observer.on_prefilled(done, self.now_s)

    def _first_token(self, running: _Running) -> None:
        running.request.first_token_s = self.now_s
        running.tokens = 1
        if running.request.arrival.output_tokens:
            self.policy.on_generated(running.request.request_id, 1)
            self.kv_tokens += 1

    def _end_requests(self) -> list[SimRequest]:
        ended = [running for running in self._decoding if running.left <= 0]
        for running in ended:
            self._decoding.remove(running)
            self._reserved -= running.reserved
            self.kv_tokens -= running.prompt + running.request.arrival.output_tokens
            running.request.finish_s = self.now_s
            self.policy.finish(running.request.request_id)
            self._observer.on_finished(running.request, self.now_s)
        return [running.request for running in ended]


def _take(parts: list[tuple[_Running, int]], running: _Running, budget: int) -> int:
    """Add as much of the prompt as the budget allows, and return the rest of the budget."""
    tokens = min(running.prompt_left, budget)
    if tokens:
        parts.append((running, tokens))
    return budget - tokens
