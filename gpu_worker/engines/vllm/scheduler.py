"""vLLM's scheduler with our policies. scheduler_choice.py has the class that `--scheduler-cls` names.

vLLM lets a class replace its `Scheduler`, but the class is not public API. So the version is pinned (pyproject.toml),
and tests/vllm runs at every upgrade. Each step:

    schedule()             end expired requests; run a pass of admissions that pauses prompts and preempts for waiting
                           requests (swap, recompute or drop); sort the running requests so that vLLM's own preemption
                           takes the least urgent; then vLLM's schedule() admits in the policy's order
    update_from_output()   charge the generated tokens; report the requests that were ended here

Settings are in vLLM's `additional_config` under "headgate" (settings.py).
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.outputs import LogprobsLists
from vllm.v1.request import Request, RequestStatus

from gpu_worker.engines.vllm.kv_budget import VllmKvBudget
from gpu_worker.engines.vllm.next_step import NextStep, decoding_tiers, least_tokens, may_shorten, step_tokens_of
from gpu_worker.engines.vllm.protocol import ENDED_PREFIX
from gpu_worker.engines.vllm.reports import Reports
from gpu_worker.engines.vllm.room import has_slot, may_lack_room
from gpu_worker.engines.vllm.settings import scheduler_settings
from gpu_worker.engines.vllm.waiting_queue import PolicyQueue, loaded_adapters
from gpu_worker.policies.admission import Admission
from gpu_worker.policies.preemption import Eviction, Strategy
from gpu_worker.policies.scheduling_stats import SchedulingStats
from gpu_worker.policies.step_tokens import StepTokens, Turns

_PLACEHOLDER_TOKEN = 0
_REQUEST_ID = attrgetter("request_id")
_IS_PROMPT = attrgetter("is_prefill_chunk")


class TieredSchedulingMixin:
    """Our part, over either of vLLM's schedulers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        vllm: Any = self
        settings = scheduler_settings(vllm.vllm_config.additional_config, vllm.scheduler_config.policy)
        policy = settings.make_queue()
        self.queue_policy = policy
        """vLLM's scheduler has a `policy` of its own: it now preempts the last running request, in our order."""
        vllm.policy = SchedulingPolicy.FCFS
        vllm.kv_holding_waiting = create_request_queue(vllm.policy)
        self.admission = Admission(policy)
        self.counts = SchedulingStats()
        self.waiting = PolicyQueue(
            self.admission, self, self._kv_budget, time.monotonic, settings, loaded_adapters(self)
        )
        self._unsent: list[tuple[int, EngineCoreOutput]] = []
        """Final outputs of requests that were ended here, with their clients' indexes."""
        self._eviction: Eviction | None = None
        """The eviction during a call of `_preempt_request`; None in vLLM's own calls."""
        self._sorted_admissions = 0
        """The policy's count of admissions at the last sort of the running requests."""
        self._discarding: set[str] = set()
        """Preempted requests that still have tokens in flight, which vLLM discards."""
        self._turns = Turns(policy)
        self._parts: dict[str, int] = {}
        """The tokens of running prompts in this step, where they get less than they could take."""
        self._is_shared = False
        """Whether this step's tokens are shared out."""
        self._reports = Reports(self, sends=settings.sends_stats)
        self._complete: dict[int, int] = {}
        """The policy's count of admissions at each step in flight, by the id of its output; -1 if a running request is
        not in the step."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        vllm: Any = self
        has_prompts = bool(vllm._inflight_prefills) and any(map(_IS_PROMPT, vllm.running))
        self.waiting.begin_pass(has_prompts=has_prompts)
        self.admission.begin_pass(time.monotonic())
        for request_id in self.admission.pop_expired():
            self.counts.expired += 1
            self._end(vllm.requests[request_id], "expired")
        self._sort_running()
        if self._may_make_room(has_prompts):
            self._make_room_for_waiting()
        if has_prompts and not self._is_shared:
            self._share_tokens(step_tokens_of(self, self._turns.next()))
        self._is_shared = False
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        self.waiting.end_pass()
        if self._parts:
            self._parts = {}
            del vllm._reserve_prefill_lookahead
        is_complete = len(output.num_scheduled_tokens) == len(vllm.running)
        self._complete[id(output)] = self.queue_policy.admissions if is_complete else -1
        self._reports.scheduled(output)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        discarded = self._discarded_requests(scheduler_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        is_complete = self._complete.pop(id(scheduler_output), None) == self.queue_policy.admissions
        self._charge(model_runner_output, discarded, is_complete=is_complete and not discarded)
        self._send(outputs)
        self._reports.ran(scheduler_output)
        self._reports.attach(outputs)
        return outputs

    def add_request(self, request: Request) -> None:
        """Add a request, or end one that the policy refuses. Must not raise: that would end vLLM's core."""
        super().add_request(request)  # type: ignore[misc]
        while self.waiting.refused:
            self._end(*self.waiting.refused.pop())
        self.counts.wrong_fields = self.waiting.wrong_fields

    def has_requests(self) -> bool:
        return bool(self._unsent) or self._reports.has_unsent or bool(super().has_requests())  # type: ignore[misc]

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        self.waiting.resetting = True
        try:
            return bool(super().reset_prefix_cache(*args, **kwargs))  # type: ignore[misc]
        finally:
            self.waiting.resetting = False

    def _kv_budget(self, next_step: NextStep | None = None) -> VllmKvBudget:
        swap_bytes_free = self._reports.swap().free_bytes
        waiting = self.waiting
        return VllmKvBudget(self, self.queue_policy, waiting.request_of, swap_bytes_free, waiting.may_pass, next_step)

    def _may_make_room(self, has_prompts: bool) -> bool:
        """Fast pre-check, usually false: could a plan differ from what vLLM does by itself? It preempts or pauses
        running requests, or lets a waiting one pass. `has_prompts`: whether running requests compute prompts."""
        vllm: Any = self
        policy = self.queue_policy
        if not len(self.waiting) or vllm.pause_state is not PauseState.UNPAUSED:
            return False
        if policy.may_preempt():
            return True
        if not has_slot(self):
            return False
        if has_prompts:
            return True
        head = self.waiting.first_by_policy()
        if head is None or not policy.passes(head):
            return False
        return may_lack_room(self, self.waiting.request_of(head.request_id))

    def _make_room_for_waiting(self) -> None:
        """Plan the pass of admissions that vLLM is about to make, and evict its victims.

        The policy admits what is planned, so that the next one is chosen with its charges; vLLM's pops confirm it
        (waiting_queue.py).
        """
        next_step = NextStep(self, self._turns.next)
        kv_budget = self._kv_budget(next_step)
        self.waiting.take_back_adapters()
        planned = self._pass_over(kv_budget)
        while (plan := self.admission.next_plan(kv_budget)) is not None:
            for eviction in plan.evictions:
                self._evict(eviction)
            if plan.evictions:
                kv_budget.update_after_evictions([eviction.resident.request_id for eviction in plan.evictions])
            kv_budget.admit(plan.request, partial(self.queue_policy.pause_precedence, plan.request))
            self.queue_policy.admit(plan.request.request_id)
            planned |= {plan.request.request_id: None, **self._pass_over(kv_budget)}
        self.waiting.put_first(planned)
        if next_step.is_counted:
            self._share_tokens(next_step.tokens)

    def _share_tokens(self, tokens: StepTokens) -> None:
        """Settle this step's tokens, and note the parts of prompts that vLLM must limit."""
        self._is_shared = True
        prefills = self._turns.settle(tokens, decoding_tiers(self) if tokens.prefills else ())
        self._parts = {one.request_id: one.part for one in prefills if one.part < one.wanted}
        if self._parts:
            vllm: Any = self
            vllm._reserve_prefill_lookahead = self._limit_prompt  # vLLM calls it for every request of every step

    def _limit_prompt(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        """Limit a running prompt to its part of this step: 0 tokens is a pause, in which vLLM leaves it as it is."""
        part = self._parts.get(request.request_id)
        if part is not None:
            part = part if may_shorten(self, request) else 0
            num_new_tokens = min(num_new_tokens, part + least_tokens(request))
        return int(super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens))  # type: ignore[misc]

    def _pass_over(self, kv_budget: VllmKvBudget) -> dict[str, None]:
        """Go on without the next requests that will not run, so that none is preempted for them. Return those that the
        policy admitted because vLLM will pop them and give them back; one that waits for an adapter's place is held
        back instead, as vLLM counts only the adapters of this step and not those of prompts that pause."""
        admitted: dict[str, None] = {}
        is_done = False
        while not is_done:
            is_done = True
            for head in self.queue_policy.heads():
                if not self.admission.is_passed_over(head, kv_budget):
                    continue
                if kv_budget.waits_for_adapter(head.request_id):
                    is_done &= not self.waiting.hold_back(head.request_id)
                else:
                    self.queue_policy.admit(head.request_id)
                    admitted[head.request_id] = None
                    is_done = False
        return admitted

    def _evict(self, eviction: Eviction) -> None:
        vllm: Any = self
        request = vllm.requests[eviction.resident.request_id]
        if eviction.strategy is Strategy.DROP:
            self.counts.count_eviction(eviction)
            self._end(request, "preempted_too_often" if eviction.exhausted else "preempted")
            return
        vllm.running.remove(request)
        self._eviction = eviction
        vllm._preempt_request(request, time.monotonic(), vllm.requires_kv_delivery)
        vllm.prev_step_scheduled_req_ids.discard(request.request_id)

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
        """Preempt, by our plan or by vLLM itself when a running request grew; the latter also swaps if it can.

        `drop_stale_output`: tokens in flight are discarded, at a cache reset and where another engine needs the KV."""
        eviction, self._eviction = self._eviction, None
        swap = eviction is None or eviction.strategy is Strategy.SWAP
        swapped = swap and not self.waiting.resetting and self._reports.swap_out(request)
        strategy = Strategy.SWAP if swapped else Strategy.RECOMPUTE
        if eviction is None:
            self.counts.native += 1
        else:
            self.counts.count_eviction(eviction, strategy)
        self._reports.evicted(request, strategy, eviction)
        super()._preempt_request(request, timestamp, drop_stale_output)  # type: ignore[misc]
        if drop_stale_output:
            self._discarding.add(request.request_id)

    def _end(self, request: Request, reason: str) -> None:
        """End a request for good; its client gets the reason with the next outputs."""
        vllm: Any = self
        vllm.finish_requests([request.request_id], RequestStatus.FINISHED_ABORTED)
        self._unsent.append((request.client_index, _final_output(request, reason)))

    def _send(self, outputs: dict[int, EngineCoreOutputs]) -> None:
        """Add the final outputs of requests that were ended here."""
        for client, output in self._unsent:
            outputs.setdefault(client, EngineCoreOutputs()).outputs.append(output)
        self._unsent.clear()

    def _sort_running(self) -> None:
        """Sort the running requests by rank, then by admission: vLLM preempts from the end of the list. Requests that
        joined since the last sort are at the end; the others are in order."""
        vllm: Any = self
        joined = min(self.queue_policy.admissions - self._sorted_admissions, len(vllm.running))
        self._sorted_admissions = self.queue_policy.admissions
        if joined:
            newcomers = vllm.running[-joined:]
            del vllm.running[-joined:]
            for request in newcomers:
                if not vllm.running or self._eviction_key(vllm.running[-1]) < self._eviction_key(request):
                    vllm.running.append(request)
                else:
                    insort(vllm.running, request, key=self._eviction_key)

    def _eviction_key(self, request: Request) -> tuple[bool, float, int]:
        return self.queue_policy.eviction_key(request.request_id)

    def _discarded_requests(self, scheduler_output: Any) -> set[str]:
        """Return the requests that lose their sampled tokens in this step."""
        if not self._discarding:
            return self._discarding
        vllm: Any = self
        left = [vllm.requests[name] for name in self._discarding if name in vllm.requests]
        self._discarding = {request.request_id for request in left if request.num_stale_output_tokens}
        return self._discarding.intersection(scheduler_output.num_scheduled_tokens)

    def _charge(self, model_runner_output: Any, discarded: Collection[str], *, is_complete: bool) -> None:
        """Charge one token for every running request in one call, except requests that got none; then charge the rest
        of requests that got several. `is_complete`: whether the step was for all that run now."""
        vllm: Any = self
        sampled = model_runner_output.sampled_token_ids or ()
        generated = model_runner_output.req_id_to_index if sampled else {}
        if discarded:
            generated = {name: index for name, index in generated.items() if name not in discarded}
        lengths = set(map(len, sampled))
        stalled: list[str] = []
        if not (is_complete and sampled) and not all(map(generated.__contains__, map(_REQUEST_ID, vllm.running))):
            stalled = [request.request_id for request in vllm.running if request.request_id not in generated]
        if vllm.kv_holding_waiting:  # their KV is being loaded
            stalled += filter(self._runs, map(_REQUEST_ID, vllm.kv_holding_waiting))
        if lengths - {1}:
            stalled += self._running_with(generated, sampled, lambda count: count == 0)
        self.queue_policy.on_decoded(1, stalled)
        if max(lengths, default=0) > 1:
            self._charge_several(self._running_with(generated, sampled, lambda count: count > 1))

    def _running_with(
        self, generated: Mapping[str, int], sampled: Sequence[Any], wanted: Callable[[int], bool]
    ) -> list[str]:
        """Return the running requests with a `wanted` number of sampled tokens."""
        return [name for name, index in generated.items() if wanted(len(sampled[index])) and self._runs(name)]

    def _runs(self, request_id: str) -> bool:
        return self.queue_policy.holds(request_id) and self.queue_policy.is_running(request_id)

    def _charge_several(self, request_ids: list[str]) -> None:
        """Charge all tokens so far of requests that got several (speculative decoding)."""
        vllm: Any = self
        for request_id in request_ids:
            self.queue_policy.on_generated(request_id, vllm.requests[request_id].num_output_tokens)

    def _charge_final(self, request: Request) -> None:
        """Charge a request's last tokens, also those that were in flight when it was preempted and arrived later."""
        request_id, tokens, policy = request.request_id, request.num_output_tokens, self.queue_policy
        if tokens > policy.record(request_id).output_tokens:
            if not policy.is_running(request_id):
                policy.admit(request_id)
            policy.on_generated(request_id, tokens)

    def _refund_rest_of_prompt(self, request: Request) -> None:
        """Refund what was not computed of the prompt of a request that ends before its first token."""
        request_id, computed = request.request_id, request.num_computed_tokens
        in_prefill = computed < request.num_prompt_tokens and not request.num_output_tokens
        if in_prefill and self.queue_policy.is_running(request_id):
            self.queue_policy.on_prompt_counted(request_id, computed)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        """Remove an ended request from the policy. vLLM calls this at every end."""
        request_id = request.request_id
        if self.queue_policy.holds(request_id):
            self._charge_final(request)
            self._refund_rest_of_prompt(request)
            self.queue_policy.remove(request_id)
        self._reports.gone(request_id)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]


class TierScheduler(TieredSchedulingMixin, Scheduler):  # type: ignore[misc]
    """Over vLLM's scheduler that waits for each step (CPU)."""


class AsyncTierScheduler(TieredSchedulingMixin, AsyncScheduler):  # type: ignore[misc]
    """Over vLLM's scheduler that schedules one step ahead (CUDA)."""


def _final_output(request: Request, reason: str) -> EngineCoreOutput:
    """Return the last output of a request that our scheduler ended. `reason`: see ends.py.

    vLLM's server sends no chunk, and so no reason, for a choice that ends without any token. So such a choice gets a
    placeholder, with a logprob if the request wants them. The worker raises the reason's error, and neither forwards
    nor charges the placeholder.
    """
    tokens = [] if request.num_output_tokens else [_PLACEHOLDER_TOKEN]
    wants_logprobs = request.sampling_params is not None and request.sampling_params.logprobs is not None
    logprobs = None
    if tokens and wants_logprobs:
        logprobs = LogprobsLists(np.array([tokens]), np.zeros((1, 1), np.float32), np.ones(1, np.int64))
    return EngineCoreOutput(
        request.request_id,
        tokens,
        new_logprobs=logprobs,
        finish_reason=FinishReason.ABORT,
        stop_reason=ENDED_PREFIX + reason,
    )
