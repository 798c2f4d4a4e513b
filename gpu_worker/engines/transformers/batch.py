"""The engine thread's side of transformers' continuous batching: tokens become charges and events.

We build on internals of transformers 5.23, hence the pin: a `Scheduler` subclass decides which requests enter the batch
(scheduler.py), and the manager's `OutputRouter` receives every generated token, in the same thread, right after each
step. So nothing here waits for the event loop: a stop string, a charge or an abort takes effect before the next batch.

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
from transformers.generation.continuous_batching.requests import RequestStatus

from gpu_worker.engines.event_queue import EventQueue
from gpu_worker.engines.interface import (
    Dropped,
    EngineError,
    EngineEvent,
    EngineRequest,
    Finished,
    RefusedByPolicy,
    Token,
)
from gpu_worker.engines.text import Detokenizer, StopMatcher
from gpu_worker.policies.preemption.admission import Admission
from gpu_worker.policies.scheduling_stats import SchedulingStats


@dataclass(eq=False, slots=True)
class Sequence:
    """One request in the engine, from `generate` to its last event."""

    request: EngineRequest
    input_tokens: int
    events: EventQueue
    detokenizer: Detokenizer
    stops: StopMatcher
    output_tokens: int = 0
    ending: str = "aborted"
    """The reason to report if the request is removed from the batch before its end."""


class PolicyRouter(OutputRouter):  # type: ignore[misc]
    """Turns generated tokens into charges and events. Everything except `live` belongs to the engine thread or needs
    `lock`."""

    def __init__(
        self,
        admission: Admission,
        end_tokens: frozenset[int],
        loop: asyncio.AbstractEventLoop,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.admission = admission
        self.policy = admission.policy
        self.counts = SchedulingStats()
        self.monotonic_s = monotonic_s
        self.delivered_s = 0.0
        """When the last step's tokens arrived."""
        self.lock = threading.RLock()
        self.live: dict[str, Sequence] = {}
        self.stopping = False
        self.cancel_in_batch: set[str] = set()
        """Requests to remove before the next step: stop string found, or expired."""
        self._end_tokens = end_tokens
        self._loop = loop
        self._events: list[tuple[Sequence, EngineEvent | EngineError]] = []

    def deliver_batch(self, outputs: list[Any]) -> None:
        self.delivered_s = self.monotonic_s()
        for output in outputs:
            if (sequence := self.live.get(output.request_id)) is not None:
                self._take(sequence, output)
        self.send()

    def deliver(self, output: Any) -> None:
        self.deliver_batch([output])

    def removed(self, request_id: str) -> None:
        """End a request that the scheduler removed: aborted, expired, or a stop string was found."""
        if (sequence := self.live.get(request_id)) is not None:
            self._end(sequence, Finished(sequence.ending, sequence.input_tokens, sequence.output_tokens))

    def refused(self, sequence: Sequence) -> None:
        """End a request that the policy does not accept."""
        self._end(sequence, RefusedByPolicy())
        self.send()

    def dropped(self, request_id: str, *, exhausted: bool) -> None:
        """End a request that was evicted for good."""
        if (sequence := self.live.get(request_id)) is not None:
            self._end(sequence, Dropped(exhausted=exhausted))

    def end_all(self) -> None:
        """End every request, also those that the library lost while it stopped. The engine thread's last call."""
        for sequence in list(self.live.values()):
            self._end(sequence, self._failure(sequence))
        self.send()

    def send(self) -> None:
        """Send the step's events to the event loop, all at once."""
        if self._events:
            events, self._events = self._events, []
            try:
                self._loop.call_soon_threadsafe(_put_all, events)
            except RuntimeError:  # the loop is closed: nothing reads the events
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
            reason: str = "stop" if ended else "length"
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
                self.policy.remove(request_id)
        self._events.append((sequence, event))


def _put_all(events: list[tuple[Sequence, EngineEvent | EngineError]]) -> None:
    for sequence, event in events:
        sequence.events.put_nowait(event)
