"""The engine thread's side of transformers' continuous batching: our queue policy in its scheduler, our events out.

The seam (internal to transformers 5.23, hence the pin): a `Scheduler` subclass decides who enters the batch, and the
manager's `OutputRouter` receives every generated token, in the same thread, right after each step. So nothing here
waits for the event loop: a stop string, a charge or an abort takes effect before the next batch is made up.

    loop thread   generate() ─ add_request ─▶ input queue                       ◀─ call_soon_threadsafe ─ events
    engine thread              add_waiting_request ─ schedule_batch ─ forward ─ deliver_batch
    policy                     enqueue               admit                      generated, finish
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers.generation.continuous_batching.continuous_api import OutputRouter
from transformers.generation.continuous_batching.requests import RequestState, RequestStatus
from transformers.generation.continuous_batching.scheduler import Scheduler

from gpu_worker.engines.base import (
    EngineError,
    EngineEvent,
    EngineRequest,
    Finished,
    FinishReason,
    RefusedByPolicy,
    Token,
)
from gpu_worker.engines.text import Detokenizer, StopMatcher
from gpu_worker.policies.queue_policy import QueuePolicy, QueueRequest


@dataclass(eq=False, slots=True)
class Sequence:
    """One request in the engine, from `generate` to its last event."""

    request: EngineRequest
    input_tokens: int
    events: asyncio.Queue[EngineEvent | EngineError]
    detokenizer: Detokenizer
    stops: StopMatcher
    output_tokens: int = 0
    ending: FinishReason = "aborted"
    """Why it ends, should it be taken out of the batch before the engine is done with it."""


class PolicyRouter(OutputRouter):  # type: ignore[misc]
    """Turns generated tokens into charges and events. All but `live` belongs to the engine thread or needs `lock`."""

    def __init__(
        self,
        policy: QueuePolicy,
        end_tokens: frozenset[int],
        loop: asyncio.AbstractEventLoop,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.policy = policy
        self.monotonic_s = monotonic_s
        self.lock = threading.Lock()
        self.live: dict[str, Sequence] = {}
        self.stopping = False
        self.cancel_in_batch: set[str] = set()
        """Requests that met a stop string in the step just done; the scheduler takes them out before the next."""
        self._end_tokens = end_tokens
        self._loop = loop
        self._events: list[tuple[Sequence, EngineEvent | EngineError]] = []

    def deliver_batch(self, outputs: list[Any]) -> None:
        for output in outputs:
            if (sequence := self.live.get(output.request_id)) is not None:
                self._take(sequence, output)
        self.send()

    def deliver(self, output: Any) -> None:
        self.deliver_batch([output])

    def taken_out(self, request_id: str) -> None:
        """The scheduler removed it: aborted, or a stop string was found."""
        if (sequence := self.live.get(request_id)) is not None:
            self._end(sequence, Finished(sequence.ending, sequence.input_tokens, sequence.output_tokens))

    def refused(self, sequence: Sequence) -> None:
        """The policy did not let it in."""
        self._end(sequence, RefusedByPolicy())
        self.send()

    def end_all(self) -> None:
        """The engine thread's last act: nobody waits for it, not even those whom the library lost on its way out."""
        for sequence in list(self.live.values()):
            self._end(sequence, self._failure(sequence))
        self.send()

    def send(self) -> None:
        """Hand the step's events over to the event loop, all at once."""
        if self._events:
            events, self._events = self._events, []
            try:
                self._loop.call_soon_threadsafe(_put_all, events)
            except RuntimeError:  # the loop is closed: nobody listens any more
                self.live.clear()

    def _take(self, sequence: Sequence, output: Any) -> None:
        new = output.generated_tokens[sequence.output_tokens :]
        if new:
            with self.lock:
                self.policy.generated(output.request_id, len(output.generated_tokens))
        for token in new:
            self._token(sequence, token, last=output.is_finished() and token is new[-1])
            if sequence.stops.stopped:
                break
        if output.status == RequestStatus.FAILED:
            self._end(sequence, self._failure(sequence))
        elif output.is_finished():
            ended = sequence.stops.stopped or output.generated_tokens[-1] in self._end_tokens
            reason: FinishReason = "stop" if ended else "length"
            self._end(sequence, Finished(reason, sequence.input_tokens, sequence.output_tokens))
        elif sequence.stops.stopped:
            sequence.ending = "stop"
            self.cancel_in_batch.add(output.request_id)

    def _token(self, sequence: Sequence, token: int, *, last: bool) -> None:
        sequence.output_tokens += 1
        text = "" if token in self._end_tokens else sequence.detokenizer.feed(token)
        if last:
            text += sequence.detokenizer.flush()
        text = sequence.stops.feed(text)
        if last and not sequence.stops.stopped:
            text += sequence.stops.flush()
        self._events.append((sequence, Token(text, sequence.output_tokens)))

    def _failure(self, sequence: Sequence) -> EngineEvent | EngineError:
        if self.stopping:
            return Finished("aborted", sequence.input_tokens, sequence.output_tokens)
        return EngineError("engine_failed", "the engine failed while it worked on this request")

    def _end(self, sequence: Sequence, event: EngineEvent | EngineError) -> None:
        request_id = sequence.request.request_id
        del self.live[request_id]
        with self.lock:
            if self.policy.holds(request_id):
                self.policy.leave(request_id)
        self._events.append((sequence, event))


def _put_all(events: list[tuple[Sequence, EngineEvent | EngineError]]) -> None:
    for sequence, event in events:
        sequence.events.put_nowait(event)


class PolicyScheduler(Scheduler):  # type: ignore[misc]
    """Admission in the policy's order. Running requests go first; a request is admitted when a place in the batch is
    free and the cache has room for its prompt and all that it may generate, so nothing is evicted later; the first of
    the policy's order that does not fit ends the admission (VTC Algorithm 2, line 22)."""

    def __init__(
        self, router: PolicyRouter, cache: Any, safety_margin: float | None, max_requests_per_batch: int
    ) -> None:
        self.router = router
        self.policy = router.policy
        self.kv_use = 0.0
        super().__init__(cache, safety_margin or 0.0, max_requests_per_batch)

    def add_waiting_request(self, state: RequestState) -> None:
        sequence = self.router.live[state.request_id]
        if self._stands_in_line(sequence):
            self.waiting_requests[state.request_id] = state
        else:
            self.router.refused(sequence)

    def _stands_in_line(self, sequence: Sequence) -> bool:
        request = sequence.request
        with self.router.lock:
            if self.policy.holds(request.request_id):  # evicted after all, to be recomputed: it stays charged
                self.policy.preempt(request.request_id)
                return True
            queued = QueueRequest(request.request_id, request.tenant, sequence.input_tokens, request.weight)
            return self.policy.enqueue(queued, self.router.monotonic_s())

    def schedule_batch(self, token_budget: int, cache_budget: int) -> tuple[list[Any] | None, bool, int, int]:
        candidates = sorted(self.active_requests.values(), key=lambda state: state.status != RequestStatus.DECODING)
        admitted = [] if self.block_new_requests else self._admit(token_budget)
        scheduled, allocation_failed, fast, query_tokens, kv_read = self._process_candidates(
            [*candidates, *admitted], token_budget, cache_budget, set()
        )
        with self.router.lock:
            for state in reversed(admitted):
                if state.request_id in self.waiting_requests:
                    self.policy.put_back(state.request_id)
        self._note_kv_use()
        if not scheduled and allocation_failed:
            return None, fast, 0, 0
        return scheduled, fast, query_tokens, kv_read

    def _admit(self, token_budget: int) -> list[RequestState]:
        admitted: list[RequestState] = []
        tokens = token_budget - sum(_tokens_next(state) for state in self.active_requests.values())
        places = self.max_requests_per_batch - len(self.active_requests)
        blocks = self.cache.num_blocks - sum(self._blocks(request_id) for request_id in self.active_requests)
        with self.router.lock:
            while tokens > 0 and places > 0 and (head := self.policy.peek()) is not None:
                blocks -= self._blocks(head.request_id)
                if blocks < 0:
                    break
                self.policy.admit(head.request_id)
                state = self.waiting_requests[head.request_id]
                admitted.append(state)
                tokens -= _tokens_next(state)
                places -= 1
        return admitted

    def _blocks(self, request_id: str) -> int:
        """Blocks that the request may come to need, all its output included."""
        sequence = self.router.live[request_id]
        return -(-(sequence.input_tokens + sequence.request.max_tokens) // self.tokens_per_block)

    @property
    def tokens_per_block(self) -> int:
        return max(1, int(self.cache.max_tokens_read) // int(self.cache.num_blocks))

    def clear_cancelled_requests(self) -> list[RequestState]:
        """Before every step. An abort that overtook its own request waits for it."""
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
                self.router.taken_out(state.request_id)
            self.router.send()
        return states

    def finish_request(self, request_id: str) -> None:
        super().finish_request(request_id)
        self._note_kv_use()

    def _note_kv_use(self) -> None:
        self.kv_use = 1.0 - float(self.cache.compute_free_capacity())


def _tokens_next(state: RequestState) -> int:
    """Tokens that it brings into the next step."""
    return 1 if state.status == RequestStatus.DECODING else len(state.remaining_prefill_tokens)
