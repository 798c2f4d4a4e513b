"""The paged engine in virtual time: the model of gpu_worker/engines/modelled/paged with the times of a profile."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import fields

from gpu_worker.engines.modelled.paged.kv_budget import PagedSequence
from gpu_worker.engines.modelled.paged.model import PagedModel, Step
from gpu_worker.engines.modelled.paged.profile import PagedProfile
from gpu_worker.policies.admission import Admission, AdmissionPlan, KvBudget
from gpu_worker.policies.scheduling_stats import SchedulingStats
from headgate.simulator.engines.interface import SimulatedEngine, output_tokens_max
from headgate.simulator.engines.profile import EngineProfile
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import PREFIX_BLOCK_TOKENS


class PagedEngine(SimulatedEngine):
    def _set_up(self) -> None:
        machine = paged_profile(self.profile)
        admission = Admission(self.policy, machine.calibration())
        if self._stopwatch is not None:
            admission = _TimedAdmission(admission, self._stopwatch, self.decision_s)
        self.model = PagedModel(machine, admission)
        if self.loaded_first:
            self.model.batch.load_first()
        self._requests: dict[str, SimRequest] = {}
        self._step: Step | None = None
        self._step_end_s = 0.0

    @property
    def counts(self) -> SchedulingStats:
        """Evictions, by strategy, and what they cost."""
        return self.model.batch.counts

    @property
    def waiting(self) -> int:
        return self.model.batch.waiting

    @property
    def running(self) -> int:
        return len(self.model.batch.running)

    @property
    def saturation(self) -> float:
        budget = self.model.batch.kv_budget
        return 1.0 - budget.free / budget.blocks_total

    def next_s(self) -> float:
        if self._step is not None:
            return self._step_end_s
        return self.now_s if self._requests else math.inf

    def advance(self, until_s: float) -> list[SimRequest]:
        while True:
            if self._step is None:
                if self.now_s >= until_s or not self._requests:
                    return []
                self._begin_step()
                if dropped := self.model.batch.take_dropped():
                    return [self._drop(sequence) for sequence in dropped]
            if self._step_end_s > until_s:
                return []
            if finished := self._end_step():
                return finished

    def _could_hold(self, request: SimRequest, prompt: int) -> bool:
        batch = self.model.batch
        blocks = batch.kv_budget.blocks_of(prompt + max(request.arrival.output_tokens, 1))
        return blocks <= batch.admission.blocks_max(request.tier, batch.kv_budget.blocks_total)

    def _enqueue(self, request: SimRequest, at_s: float) -> bool:
        prefix, adapter = _prefix_keys(request), request.arrival.adapter
        request.output_tokens_max = output_tokens_max(request.arrival.output_tokens)
        if self.model.batch.enqueue(request, at_s, prefix, adapter) is None:
            return False
        self._requests[request.request_id] = request
        return True

    def _begin_step(self) -> None:
        step = self._step = self.model.plan(self.now_s)
        if not self.running:
            raise RuntimeError("the policy admits nothing though nothing runs: the run would never end")
        factor = self._jitter_factor(1) if step.decoding or step.parts else 1.0
        self._step_end_s = self.model.end_s(step, self.now_s, factor)
        self.decisions += len(step.entered)
        for sequence in step.entered:
            request = self._requests[sequence.request.request_id]
            request.adapter_loads = sequence.loads
            if not sequence.preemptions:
                request.admitted_s = self.now_s
                request.cached_tokens = sequence.cached
                self._observer.on_admitted(request, self.now_s)

    def _drop(self, sequence: PagedSequence) -> SimRequest:
        request = self._requests.pop(sequence.request.request_id)
        request.rejected = "exhausted" if sequence.exhausted else "dropped"
        request.generated_tokens = sequence.tokens
        return request

    def _end_step(self) -> list[SimRequest]:
        """Apply the step; return the requests that finish with it."""
        step, self._step = self._step, None
        assert step is not None  # noqa: S101
        self.now_s = self._step_end_s
        computed = self.model.compute(step)
        if step.decoding:
            self._observer.on_decoded(1, self.now_s)
        for sequence in computed[len(step.decoding) :]:
            if sequence.tokens == 1:
                request = self._requests[sequence.request.request_id]
                request.first_token_s = self.now_s
                self._observer.on_prefilled([request], self.now_s)
        finished = [self._finish(sequence) for sequence in computed if sequence.ended]
        self.kv_tokens = self.model.batch.kv_tokens
        return finished

    def _finish(self, sequence: PagedSequence) -> SimRequest:
        self.model.batch.end(sequence)
        request = self._requests.pop(sequence.request.request_id)
        request.finish_s = self.now_s
        self._observer.on_finished(request, self.now_s)
        return request


def _prefix_keys(request: SimRequest) -> list[Hashable]:
    """Return the keys of the prompt's whole blocks: their hashes, with what salts them in a real engine."""
    arrival = request.arrival
    salt = (arrival.prefix_group is not None, arrival.prefix_group or arrival.tenant)
    return [(*salt, hash_id) for hash_id in arrival.hash_ids[: arrival.input_tokens // PREFIX_BLOCK_TOKENS]]


class _TimedAdmission(Admission):
    """Adds the seconds of each decision to `decision_s`."""

    def __init__(self, admission: Admission, stopwatch: Callable[[], float], decision_s: list[float]) -> None:
        super().__init__(admission.policy, admission.calibration)
        self._stopwatch = stopwatch
        self._decision_s = decision_s

    def next_plan(self, room: KvBudget) -> AdmissionPlan | None:
        before_s = self._stopwatch()
        plan = super().next_plan(room)
        self._decision_s.append(self._stopwatch() - before_s)
        return plan


def paged_profile(profile: EngineProfile) -> PagedProfile:
    """Return what the paged model needs of a profile."""
    names = {field.name for field in fields(PagedProfile)} & set(EngineProfile.model_fields)
    return PagedProfile(**{name: getattr(profile, name) for name in names}, prefix_block_tokens=PREFIX_BLOCK_TOKENS)
