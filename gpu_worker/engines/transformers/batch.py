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
from typing import Any

from transformers.generation.continuous_batching.continuous_api import OutputRouter
from transformers.generation.continuous_batching.requests import RequestStatus

from gpu_worker.engines.interface import (
    EngineError,
    EngineEvent,
    Evicted,
    RefusedByPolicy,
)
from gpu_worker.engines.transformers.logprob_forms import LogprobForms
from gpu_worker.engines.transformers.sequences import Sequence
from gpu_worker.policies.admission import Admission
from gpu_worker.policies.scheduling_stats import SchedulingStats


class PolicyRouter(OutputRouter):  # type: ignore[misc]
    """Turns generated tokens into charges and events. Everything except `live` belongs to the engine thread or needs
    `lock`."""

    def __init__(
        self,
        admission: Admission,
        end_tokens: frozenset[int],
        loop: asyncio.AbstractEventLoop,
        logprobs: LogprobForms,
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
        """The sequences that have not ended, by their ids."""
        self.logprobs = logprobs
        self.stopping = False
        self.cancel_in_batch: set[str] = set()
        """Sequences to remove before the next step: stop string found, or expired."""
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

    def removed(self, sequence_id: str) -> None:
        """End a sequence that the scheduler removed: aborted, expired, or a stop string was found."""
        if (sequence := self.live.get(sequence_id)) is not None:
            self._end(sequence, sequence.ending)

    def refused(self, sequence: Sequence) -> None:
        """End the request of a sequence that the policy does not accept."""
        self._fail(sequence, RefusedByPolicy())
        self.send()

    def dropped(self, sequence_id: str, *, exhausted: bool) -> None:
        """End the request of a sequence that was evicted for good."""
        if (sequence := self.live.get(sequence_id)) is not None:
            self._fail(sequence, Evicted(exhausted=exhausted))

    def end_all(self) -> None:
        """End every request, also those that the library lost while it stopped. The engine thread's last call."""
        for sequence in list(self.live.values()):
            self._end_unfinished(sequence)
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
                self.policy.on_generated(output.request_id, len(output.generated_tokens))
        for token in new:
            self._token(sequence, token, last=output.is_finished() and token is new[-1])
            if sequence.stops.stopped:
                break
        if output.status == RequestStatus.FAILED:
            self._end_unfinished(sequence)
        elif output.is_finished():
            ended = sequence.stops.stopped or output.generated_tokens[-1] in self._end_tokens
            self._end(sequence, sequence.stopped() if ended else "length")
        elif sequence.stops.stopped:
            sequence.ending = sequence.stopped()
            self.cancel_in_batch.add(output.request_id)

    def _token(self, sequence: Sequence, token: int, *, last: bool) -> None:
        ends_text = token in self._end_tokens
        logprobs = None if ends_text else self.logprobs.take(sequence, token)
        self._events.append((sequence, sequence.take(token, last=last, ends_text=ends_text, logprobs=logprobs)))

    def _end_unfinished(self, sequence: Sequence) -> None:
        """End a sequence that the library does not finish."""
        if self.stopping:
            self._end(sequence, "aborted")
        else:
            self._fail(sequence, EngineError("engine_failed", "the engine failed while it worked on this request"))

    def _end(self, sequence: Sequence, reason: str) -> None:
        """End a sequence, and with its last sequence the request."""
        self._leave(sequence)
        sequence.reason = reason
        if sequence.answer.ended:
            self._events.append((sequence, sequence.answer.finished()))

    def _fail(self, sequence: Sequence, error: EngineError) -> None:
        """End a request by an error. `generate` aborts its other sequences when it raises the error."""
        self._leave(sequence)
        self._events.append((sequence, error))

    def _leave(self, sequence: Sequence) -> None:
        del self.live[sequence.sequence_id]
        self.logprobs.forget(sequence.sequence_id)
        with self.lock:
            if self.policy.holds(sequence.sequence_id):
                self.policy.remove(sequence.sequence_id)


def _put_all(events: list[tuple[Sequence, EngineEvent | EngineError]]) -> None:
    for sequence, event in events:
        sequence.answer.events.put_nowait(event)
