"""vLLM's scheduler with our policies in it: `--scheduler-cls gpu_worker.engines.vllm.scheduler.TierScheduler`.

The seam is vLLM's `Scheduler`, which a class may replace but which is not public: pinned (pyproject), and tests/vllm
runs at every upgrade. Of each step:

    schedule()             expired requests end; a pass of admissions evicts for who waits (swap, recompute or drop);
                           those that run are put in order, so that what vLLM evicts by itself is the least urgent;
                           then vLLM's own schedule() admits in the policy's order (vllm/waiting_queue.py)
    update_from_output()   what was generated is charged; who was ended here is told so

Settings come in vLLM's `additional_config` under "headgate": `policy`, `tiers` (TierSettings), `figures_file`.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import Request, RequestStatus

from gpu_worker.engines.scheduling_gauges import scheduling_gauges
from gpu_worker.engines.vllm.kv_budget import VllmKvBudget
from gpu_worker.engines.vllm.reports import Reports
from gpu_worker.engines.vllm.waiting_queue import PolicyQueue
from gpu_worker.policies.configured import make_queue
from gpu_worker.policies.preemption.admission import Admission
from gpu_worker.policies.preemption.costs import Eviction, Strategy
from gpu_worker.policies.scheduling_stats import SchedulingGauges, SchedulingStats
from gpu_worker.policies.tiers.tiered import TieredQueue

DEFAULT_POLICY = "tiered:vtc"
_NAME = attrgetter("request_id")
ENDED = "headgate:"
"""Before the reason, in the `stop_reason` of a request that the scheduler ended."""


class TieredSchedulingMixin:
    """What is ours, over either of vLLM's schedulers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        vllm: Any = self
        told: Mapping[str, Any] = (vllm.vllm_config.additional_config or {}).get("headgate", {})
        name = str(told.get("policy", DEFAULT_POLICY))
        tierless = not name.startswith("tiered")
        settings = {"preemption": False, "shares": {}} if tierless else told.get("tiers", {})
        policy = make_queue(f"tiered:{name}" if tierless else name, settings)
        assert isinstance(policy, TieredQueue)  # noqa: S101 (by its name)
        self.policy = policy
        self.admission = Admission(policy)
        self.counts = SchedulingStats()
        self.waiting = PolicyQueue(self.admission, self._room, time.monotonic, tierless=tierless)
        self._unsent: list[tuple[int, EngineCoreOutput]] = []
        self._eviction: Eviction | None = None
        self._joined = 0
        self._dropping: set[str] = set()
        self._reports = Reports(self, told.get("figures_file"))

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        vllm: Any = self
        self.waiting.pass_begins()
        self.admission.begin_pass(time.monotonic())
        for request_id in self.admission.pop_expired():
            self.counts.expired += 1
            self._end(vllm.requests[request_id], "expired")
        if self._may_preempt():
            self._make_room()
        self._put_in_order()
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        self.waiting.pass_ends()
        self._reports.scheduled(output)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        dropped = self._dropped(scheduler_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        self._charge(model_runner_output, dropped)
        self._send(outputs)
        self._reports.ran(scheduler_output)
        return outputs

    def add_request(self, request: Request) -> None:
        """Raises nothing for what a client may send: vLLM's core would end with it."""
        super().add_request(request)  # type: ignore[misc]
        while self.waiting.refused:
            self._end(*self.waiting.refused.pop())

    def has_requests(self) -> bool:
        return bool(self._unsent) or bool(super().has_requests())  # type: ignore[misc]

    def gauges(self) -> SchedulingGauges:
        """For people: how things stand."""
        vllm: Any = self
        running: dict[Any, int] = {}
        blocks: dict[Any, int] = {}
        for resident in (room := self._room()).residents():
            running[resident.tier] = running.get(resident.tier, 0) + 1
            blocks[resident.tier] = blocks.get(resident.tier, 0) + resident.blocks
        swap = self._reports.swap()
        return scheduling_gauges(
            self.admission,
            running=running,
            blocks=blocks,
            blocks_total=room.blocks_total,
            pool_tokens=room.blocks_total * vllm.block_size,
            context_tokens=vllm.max_model_len,
            swap_bytes_total=swap.total_bytes,
            swap_bytes_used=swap.used_bytes,
        )

    def _room(self) -> VllmKvBudget:
        return VllmKvBudget(self, self.policy, self.waiting.of, self._reports.swap().free_bytes)

    def _may_preempt(self) -> bool:
        """Cheap, and nearly always no: a pass is planned only where somebody runs who ranks behind one who waits, and
        while vLLM lets anybody in."""
        vllm: Any = self
        return self.policy.may_preempt() and vllm.pause_state is PauseState.UNPAUSED

    def _make_room(self) -> None:
        """A pass as it is going to be, with its evictions; who it let in stands in line again for vLLM to admit."""
        room, passed_over = self._room(), self._pass_over()
        while (plan := self.admission.next_plan(room)) is not None and room.has_tokens(plan.evictions):
            for eviction in plan.evictions:
                self._evict(eviction)
            if plan.evictions:
                room.left()
            room.takes(plan.request.request_id)
            self.policy.admit(plan.request.request_id)
            passed_over += self._pass_over()
        tentative = sorted([*passed_over, *room.admitted], key=lambda name: self.policy.tier_state(name).admission)
        for request_id in reversed(tentative):
            self.policy.undo_admit(request_id)
        self.waiting.go_first(room.admitted)

    def _pass_over(self) -> list[str]:
        """Nobody is evicted for whom vLLM will skip: like there, it is out of the others' way for this pass."""
        passed_over: list[str] = []
        while skipped := [one.request_id for one in self.policy.heads() if not self.waiting.is_ready(one.request_id)]:
            for request_id in skipped:
                self.policy.admit(request_id)
            passed_over += skipped
        return passed_over

    def _evict(self, eviction: Eviction) -> None:
        vllm: Any = self
        request = vllm.requests[eviction.resident.request_id]
        if eviction.strategy is Strategy.DROP:
            self.counts.count_eviction(eviction)
            self._end(request, "preempted_too_often" if eviction.exhausted else "preempted")
            return
        vllm.running.remove(request)
        self._eviction = eviction
        vllm._preempt_request(request, time.monotonic())
        vllm.prev_step_scheduled_req_ids.discard(request.request_id)

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
        """Ours, and vLLM's own for a running request that grew: that one is swapped too, where there is room."""
        eviction, self._eviction = self._eviction, None
        wanted = eviction is None or eviction.strategy is Strategy.SWAP
        swapped = wanted and not drop_stale_output and self._reports.swap_out(request)
        strategy = Strategy.SWAP if swapped else Strategy.RECOMPUTE
        if eviction is None:
            self.counts.native += 1
        else:
            self.counts.count_eviction(eviction, strategy)
        self._reports.evicted(request, strategy, eviction)
        super()._preempt_request(request, timestamp, drop_stale_output)  # type: ignore[misc]
        if drop_stale_output:
            self._dropping.add(request.request_id)

    def _end(self, request: Request, why: str) -> None:
        """For good, from within: its client is told with the next outputs."""
        vllm: Any = self
        vllm.finish_requests([request.request_id], RequestStatus.FINISHED_ABORTED)
        ended = EngineCoreOutput(request.request_id, [], finish_reason=FinishReason.ABORT, stop_reason=ENDED + why)
        self._unsent.append((request.client_index, ended))

    def _send(self, outputs: dict[int, EngineCoreOutputs]) -> None:
        for client, output in self._unsent:
            outputs.setdefault(client, EngineCoreOutputs()).outputs.append(output)
        self._unsent.clear()

    def _put_in_order(self) -> None:
        """vLLM evicts from the end: by rank, and of equals the one that came last. Who joined since stands at the end,
        the others are in order: each is put where it belongs."""
        vllm: Any = self
        joined = min(self.policy.admissions - self._joined, len(vllm.running))
        self._joined = self.policy.admissions
        if joined:
            newcomers = vllm.running[-joined:]
            del vllm.running[-joined:]
            for request in newcomers:
                if not vllm.running or self._eviction_key(vllm.running[-1]) < self._eviction_key(request):
                    vllm.running.append(request)
                else:
                    insort(vllm.running, request, key=self._eviction_key)

    def _eviction_key(self, request: Request) -> tuple[bool, float, int]:
        return self.policy.eviction_key(request.request_id)

    def _dropped(self, scheduler_output: Any) -> set[str]:
        """Of this step, who gets nothing of what it brings: a reset of the cache made vLLM compute it again."""
        if not self._dropping:
            return self._dropping
        vllm: Any = self
        here = [vllm.requests[name] for name in self._dropping if name in vllm.requests]
        self._dropping = {request.request_id for request in here if request.num_stale_output_tokens}
        return self._dropping.intersection(scheduler_output.num_scheduled_tokens)

    def _charge(self, model_runner_output: Any, dropped: Collection[str]) -> None:
        """A token for all that run, in one call; not for those that got none, and the rest for those that got more."""
        vllm: Any = self
        sampled = model_runner_output.sampled_token_ids or ()
        generated = model_runner_output.req_id_to_index if sampled else {}
        if dropped:
            generated = {name: place for name, place in generated.items() if name not in dropped}
        lengths = set(map(len, sampled))
        stalled = []
        if not all(map(generated.__contains__, map(_NAME, vllm.running))):
            stalled = [request.request_id for request in vllm.running if request.request_id not in generated]
        if lengths - {1}:
            stalled += self._running_with(generated, sampled, lambda count: count == 0)
        self.policy.decoded(1, stalled)
        if max(lengths, default=0) > 1:
            self._charge_several(self._running_with(generated, sampled, lambda count: count > 1))

    def _running_with(
        self, generated: Mapping[str, int], sampled: Sequence[Any], wanted: Callable[[int], bool]
    ) -> list[str]:
        """Those that run and were given so many tokens."""
        return [name for name, place in generated.items() if wanted(len(sampled[place])) and self._runs(name)]

    def _runs(self, request_id: str) -> bool:
        return self.policy.holds(request_id) and self.policy.is_running(request_id)

    def _charge_several(self, request_ids: list[str]) -> None:
        """Of speculative decoding."""
        vllm: Any = self
        for request_id in request_ids:
            self.policy.generated(request_id, vllm.requests[request_id].num_output_tokens)

    def _charge_the_last(self, request: Request) -> None:
        """Also of one that was evicted with a token on its way, and ends before it is let in again: it ran for that."""
        request_id, tokens = request.request_id, request.num_output_tokens
        if not self.policy.is_running(request_id) and tokens > self.policy.record(request_id).output_tokens:
            self.policy.admit(request_id)
        if self.policy.is_running(request_id):
            self.policy.generated(request_id, tokens)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        """Every end comes by here."""
        request_id = request.request_id
        if self.policy.holds(request_id):
            self._charge_the_last(request)
            self.policy.remove(request_id)
        self._reports.gone(request_id)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]


class TierScheduler(TieredSchedulingMixin, Scheduler):  # type: ignore[misc]
    """Over the scheduler that waits for each step: CPU."""


class AsyncTierScheduler(TieredSchedulingMixin, AsyncScheduler):  # type: ignore[misc]
    """Over the one that schedules a step ahead: CUDA."""
