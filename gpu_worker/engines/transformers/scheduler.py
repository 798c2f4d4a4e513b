"""Admission and preemption inside transformers' scheduler.

A request is admitted when the batch has a free slot and the cache has blocks for its prompt and its longest possible
output; its expected output, if its client set no limit. Such requests can grow beyond the blocks. Then the request that
is last in the policy's order is evicted. All other evictions are for waiting requests. Running requests go first in
every step, decodes before prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

from transformers.generation.continuous_batching.requests import RequestState, RequestStatus
from transformers.generation.continuous_batching.scheduler import Scheduler

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.copy_rates import measure_copy_rates
from gpu_worker.engines.step_costs import CostTracker
from gpu_worker.engines.transformers.batch import PolicyRouter, Sequence
from gpu_worker.engines.transformers.swap import HostSwap
from gpu_worker.policies.admission import Obstacle
from gpu_worker.policies.fairness.tiered import TieredQueue
from gpu_worker.policies.preemption import Eviction, Resident, Strategy


class PolicyScheduler(Scheduler):  # type: ignore[misc]
    """The scheduler is also the admission's `KvBudget`. Blocks count as held if a request may come to need them."""

    step_tokens = None
    """A pass ends when the step has no token left; the library shares out the step's tokens."""

    def __init__(
        self, router: PolicyRouter, cache: Any, safety_margin: float | None, max_requests_per_batch: int
    ) -> None:
        self.router = router
        self.policy = router.policy
        self.admission = router.admission
        self.cost_tracker = CostTracker(router.admission, router.counts)
        self.swap: HostSwap | None = None
        self.kv_use = 0.0
        self._admitted: list[RequestState] = []
        self._blocks_free = 0
        self._step: dict[str, tuple[int, int]] = {}
        self._step_began_s = 0.0
        super().__init__(cache, safety_margin or 0.0, max_requests_per_batch)

    @property
    def tokens_per_block(self) -> int:
        return max(1, int(self.cache.max_tokens_read) // int(self.cache.num_blocks))

    @property
    def blocks_total(self) -> int:
        return int(self.cache.num_blocks)

    @property
    def blocks_free(self) -> int:
        return self._blocks_free

    @property
    def slots_free(self) -> int:
        return int(self.max_requests_per_batch) - len(self.active_requests) - len(self._admitted)

    @property
    def swap_bytes_free(self) -> float:
        return 0.0 if self.swap is None else self.swap.free_bytes

    def blocks_needed(self, request_id: str) -> int:
        """Return the blocks for the request's prompt and its longest possible output.

        If the client set no limit, the output counts with its expected length, and later with its length so far and
        the next block.
        """
        sequence = self.router.live[request_id]
        request, block = sequence.request, self.tokens_per_block
        output = min(request.max_tokens, max(request.likely_tokens, sequence.output_tokens + block))
        return -(-(sequence.input_tokens + output) // block)

    def obstacle(self, request_id: str) -> Obstacle | None:
        return None

    def adapter_holders(self, request_id: str) -> tuple[tuple[str, ...], ...]:
        """No request has an adapter."""
        return ()

    def blocks_held_by(self, tiers: Collection[Tier]) -> int:
        held = [self._resident(state) for state in (*self._live(), *self._admitted)]
        return sum(resident.blocks for resident in held if resident.tier in tiers)

    def residents(self, wanted: Callable[[str], bool]) -> Iterable[Resident]:
        return [self._resident(state) for state in self._live() if wanted(state.request_id)]

    def _live(self) -> list[RequestState]:
        return [state for state in self.active_requests.values() if state.request_id in self.router.live]

    def held(self) -> dict[Tier, tuple[int, int]]:
        """Return the requests in the batch and the blocks kept for them, by tier. For any thread."""
        found: dict[Tier, tuple[int, int]] = {}
        for request_id in list(self.active_requests):
            if (sequence := self.router.live.get(request_id)) is not None:
                requests, blocks = found.get(sequence.request.tier, (0, 0))
                found[sequence.request.tier] = requests + 1, blocks + self.blocks_needed(request_id)
        return found

    def add_waiting_request(self, state: RequestState) -> None:
        sequence = self.router.live[state.request_id]
        if self._enqueue(sequence):
            self.waiting_requests[state.request_id] = state
        else:
            self.router.refused(sequence)

    def schedule_batch(self, token_budget: int, cache_budget: int) -> tuple[list[Any] | None, bool, int, int]:
        self._note_step()
        self._admitted = []
        if not self.block_new_requests:
            self._pass(token_budget)
        candidates = sorted(self.active_requests.values(), key=lambda state: state.status != RequestStatus.DECODING)
        scheduled, allocation_failed, fast, query_tokens, kv_read = self._process_candidates(
            [*candidates, *self._admitted], token_budget, cache_budget, set()
        )
        with self.router.lock:
            for state in reversed(self._admitted):
                if state.request_id in self.waiting_requests:
                    self.policy.undo_admit(state.request_id)
        self._note_kv_use()
        self.router.send()
        self._begin_step(scheduled)
        if not scheduled and allocation_failed:
            return None, fast, 0, 0
        return scheduled, fast, query_tokens, kv_read

    def clear_cancelled_requests(self) -> list[RequestState]:
        """Remove aborted requests, before every step. An abort that arrives before its own request is kept for it."""
        with self._cancellation_lock:
            known = self.active_requests.keys() | self.waiting_requests.keys()
            early = {name for name in self._requests_to_cancel if name not in known and name in self.router.live}
            self._requests_to_cancel |= self.router.cancel_in_batch
            self._requests_to_cancel -= early
        self.router.cancel_in_batch.clear()
        states: list[RequestState] = super().clear_cancelled_requests()
        with self._cancellation_lock:
            self._requests_to_cancel |= early
        if states:
            self._note_kv_use()
            for state in states:
                self.cost_tracker.gone(state.request_id)
                self.router.removed(state.request_id)
            self.router.send()
        return states

    def finish_request(self, request_id: str) -> None:
        super().finish_request(request_id)
        self._note_kv_use()

    def calibrate(self, device: str) -> None:
        """Update the calibration by the steps so far and by measured copies."""
        self.cost_tracker.calibrate()
        if self.swap is not None:
            rates = self.swap.measured_rates() or measure_copy_rates(device)
            self.admission.calibration = replace(
                self.admission.calibration,
                kv_bytes_per_token=self.swap.bytes_per_token,
                copy_out_bytes_per_s=rates.out_bytes_per_s,
                copy_in_bytes_per_s=rates.in_bytes_per_s,
                copy_base_s=rates.base_s,
            )

    def _enqueue(self, sequence: Sequence) -> bool:
        """Add the request to the policy's queue. False: the policy refuses it."""
        request_id = sequence.sequence_id
        with self.router.lock:
            if self.policy.holds(request_id):  # the library evicted it natively: its charges stand
                self.router.counts.native += 1
                self.policy.preempt(request_id)
                return True
            now_s = self.router.monotonic_s()
            return self.admission.enqueue(sequence.queued(now_s), now_s)

    def _pass(self, token_budget: int) -> None:
        tokens = token_budget - sum(_tokens_next(state) for state in self.active_requests.values())
        self._blocks_free = self.blocks_total - sum(self.blocks_needed(name) for name in self.active_requests)
        with self.router.lock:
            self.admission.begin_pass(self.router.monotonic_s())
            self._end_expired()
            self._evict_grown()
            while tokens > 0 and (plan := self.admission.next_plan(self)) is not None:
                for eviction in plan.evictions:
                    self._evict(eviction)
                request_id = plan.request.request_id
                self._blocks_free -= self.blocks_needed(request_id)
                self.policy.admit(request_id)
                state = self.waiting_requests[request_id]
                self._admitted.append(state)
                tokens -= _tokens_next(state)

    def _end_expired(self) -> None:
        """Have expired requests removed before the next step."""
        for request_id in self.admission.pop_expired():
            self.router.counts.expired += 1
            self.router.cancel_in_batch.add(request_id)

    def _evict(self, eviction: Eviction) -> None:
        request_id = eviction.resident.request_id
        state = self.active_requests.pop(request_id)
        self._blocks_free += eviction.resident.blocks
        if eviction.strategy is Strategy.DROP:
            self.cache.free_blocks(request_id, no_cache=True)
            self.router.counts.count_eviction(eviction)
            self.router.dropped(request_id, exhausted=eviction.exhausted)
            return
        swapped = self.swap is not None and eviction.strategy is Strategy.SWAP and self.swap.out(state, eviction)
        self.router.counts.count_eviction(eviction, Strategy.SWAP if swapped else Strategy.RECOMPUTE)
        if swapped:
            self._wait_again(state)
        else:
            self._recompute(state, eviction.predicted_s)

    def _evict_grown(self) -> None:
        """Evict running requests while these have grown beyond the blocks, the last in the policy's order first."""
        while self._blocks_free < 0 and len(self.active_requests) > 1:
            request_id = max(self.active_requests, key=self._eviction_key)
            self._blocks_free += self.blocks_needed(request_id)
            self.router.counts.native += 1
            self._recompute(self.active_requests.pop(request_id), None)

    def _eviction_key(self, request_id: str) -> Any:
        if isinstance(self.policy, TieredQueue):
            return self.policy.eviction_key(request_id)
        return self.policy.record(request_id).place

    def _recompute(self, state: RequestState, predicted_s: float | None) -> None:
        """Throw away the KV of a request; when it returns, it is computed from the start."""
        self.cache.free_blocks(state.request_id, no_cache=True)
        self.cost_tracker.begin_recompute(state.request_id, state.position_offset, predicted_s)
        self._wait_again(_from_the_start(state))

    def _wait_again(self, state: RequestState) -> None:
        self.waiting_requests[state.request_id] = state
        self.policy.preempt(state.request_id)

    def _resident(self, state: RequestState) -> Resident:
        sequence = self.router.live[state.request_id]
        return Resident(
            state.request_id,
            sequence.request.tier,
            self.blocks_needed(state.request_id),
            state.position_offset,
            sequence.output_tokens,
            self.admission.policy.record(state.request_id).preemptions,
        )

    def _begin_step(self, scheduled: list[Any] | None) -> None:
        self._step_began_s = self.router.monotonic_s()
        self._step = {
            future.state.request_id: (future.state.position_offset, future.query_length) for future in scheduled or ()
        }

    def _note_step(self) -> None:
        """Report the step before this pass; it ended when its tokens came. A step of only pieces of prompts gives no
        tokens: it ended now, since this pass follows at once. Other steps without tokens are not timed."""
        if self.swap is not None:
            self.swap.note_copies()
        ended_s = self.router.delivered_s
        if ended_s <= self._step_began_s and all(self._in_prefill(request_id) for request_id in self._step):
            ended_s = self.router.monotonic_s()
        if self._step and ended_s > self._step_began_s:
            self.cost_tracker.step(ended_s - self._step_began_s, self._step)
        self._step = {}

    def _in_prefill(self, request_id: str) -> bool:
        state = self.active_requests.get(request_id)
        return state is not None and state.status == RequestStatus.PREFILLING

    def _note_kv_use(self) -> None:
        self.kv_use = 1.0 - float(self.cache.compute_free_capacity())


def _from_the_start(state: RequestState) -> RequestState:
    """Return the same request with its output as part of its prompt: it is computed again and not sent again."""
    again: RequestState = state.create_equivalent_initial_request()
    state._status = RequestStatus.FINISHED
    return again


def _tokens_next(state: RequestState) -> int:
    """Return the tokens that the request adds to the next step."""
    return 1 if state.status == RequestStatus.DECODING else len(state.remaining_prefill_tokens)
