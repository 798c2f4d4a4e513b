"""The engine with separate prefill in its plain form: one decode step after another, everything computed anew."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpu_worker.policies.fairness.interface import QueuePolicy, QueueRequest
from headgate.simulator.engines.profile import EngineProfile
from headgate.workloads.arrivals import Arrival


@dataclass
class Served:
    arrival: Arrival
    request_id: str
    prompt: int
    tokens: int = 0
    admitted_s: float = -1.0
    first_token_s: float = -1.0
    finish_s: float = -1.0

    @property
    def left(self) -> int:
        return max(self.arrival.output_tokens, 1) - max(self.tokens, 1)


class StepwiseEngine:
    def __init__(self, profile: EngineProfile, policy: QueuePolicy) -> None:
        self.profile, self.policy = profile, policy
        self.now_s = 0.0
        self.batch: list[Served] = []
        self.waiting: dict[str, Served] = {}
        self.order: list[str] = []
        self.finished: list[Served] = []
        self.is_warm = False

    def play(self, arrivals: Sequence[Arrival]) -> None:
        """Serve the arrivals, without those that are larger than the pool."""
        upcoming = [
            Served(arrival, str(number), arrival.input_tokens + self.profile.prompt_extra_tokens)
            for number, arrival in enumerate(arrivals)
        ]
        upcoming = [
            one
            for one in upcoming
            if one.prompt + max(one.arrival.output_tokens, 1) < self.profile.pool_tokens - self.profile.tenant_tokens
        ]
        steps = 0
        while upcoming or self.waiting or self.batch:
            if not self.waiting and not self.batch:
                self.now_s = max(self.now_s, upcoming[0].arrival.arrival_s)
            self.enqueue_arrivals(upcoming)
            if not self.batch or steps >= self.profile.steps_between_admissions:
                admitted = self.attempt(upcoming)
                repeats = self.profile.repeats_failed_attempts and not admitted
                steps = self.profile.steps_between_admissions - 1 if repeats else 0
            else:
                steps += 1
                self.step(upcoming)

    def enqueue_arrivals(self, upcoming: list[Served], *, before_s: float | None = None) -> None:
        """Enqueue the requests that have arrived by now, or strictly before `before_s`."""
        until_s = self.now_s if before_s is None else math.nextafter(before_s, -math.inf)
        while upcoming and upcoming[0].arrival.arrival_s <= until_s:
            one = upcoming.pop(0)
            arrival = one.arrival
            self.waiting[one.request_id] = one
            self.policy.enqueue(
                QueueRequest(one.request_id, arrival.tenant, arrival.input_tokens, 1.0, arrival.output_tokens),
                arrival.arrival_s,
            )

    def attempt(self, upcoming: list[Served]) -> bool:
        """Return whether a request was admitted."""
        admitted: list[Served] = []
        while (head := self.policy.peek()) is not None:
            one = self.waiting[head.request_id]
            tokens = sum(other.prompt for other in admitted)
            if admitted and tokens + one.prompt > self.profile.minibatch_tokens_max:
                break
            if self.profile.batch_max is not None and len(self.batch) >= self.profile.batch_max:
                break
            tenants = {other.arrival.tenant for other in (*self.batch, one)}
            if self.peak([*self.batch, one]) + self.profile.tenant_tokens * len(tenants) >= self.profile.pool_tokens:
                break
            self.policy.admit(one.request_id)
            del self.waiting[one.request_id]
            one.admitted_s = self.now_s
            self.batch.append(one)
            admitted.append(one)
            self.order.append(one.request_id)
        if admitted:
            tokens = sum(one.prompt for one in admitted)
            profile = self.profile
            seconds = self.prefill_s(tokens) + profile.overhead_s + (0.0 if self.is_warm else profile.warm_up_s)
            self.is_warm = True
            self.enqueue_arrivals(upcoming, before_s=self.now_s + seconds)
            self.now_s += seconds
            for one in admitted:
                one.first_token_s = self.now_s
                if one.arrival.output_tokens:
                    one.tokens = 1
                    self.policy.on_generated(one.request_id, 1)
            self.end()
        return bool(admitted)

    def prefill_s(self, tokens: int) -> float:
        curve = self.profile.prefill_curve
        if not curve:
            return self.profile.prefill_base_s + self.profile.prefill_per_token_s * tokens
        if tokens <= curve[0][0]:
            return curve[0][1]
        (low, low_s), (high, high_s) = next(
            ((one, two) for one, two in pairwise(curve) if one[0] <= tokens < two[0]), curve[-2:]
        )
        return low_s + (high_s - low_s) * (tokens - low) / (high - low)

    def peak(self, batch: Sequence[Served]) -> int:
        """Return the most tokens held just before a request ends, if no other arrives."""
        return max(
            sum(one.prompt + max(one.tokens, 1) + steps for one in batch if one.left >= steps)
            for steps in {one.left for one in batch}
        )

    def step(self, upcoming: list[Served]) -> None:
        profile = self.profile
        held = sum(one.prompt + one.tokens for one in self.batch)
        seconds = profile.decode_base_s + profile.overhead_s
        seconds += profile.decode_per_request_s * len(self.batch) + profile.decode_per_kv_token_s * held
        self.enqueue_arrivals(upcoming, before_s=self.now_s + seconds)
        self.now_s += seconds
        for one in self.batch:
            one.tokens += 1
            self.policy.on_generated(one.request_id, one.tokens)
        self.end()

    def end(self) -> None:
        for one in [one for one in self.batch if not one.left]:
            self.batch.remove(one)
            one.finish_s = self.now_s
            self.policy.finish(one.request_id)
            self.finished.append(one)
