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
from dataclasses import dataclass, field
from typing import Any

from transformers.generation.continuous_batching.continuous_api import OutputRouter
from transformers.generation.continuous_batching.requests import RequestStatus

from dispatcher.model.requests import Endpoint
from gpu_worker.engines.generation import (
    Detokenizer,
    ParsedText,
    StopMatcher,
    ToolCallParser,
    chat_form,
    completion_form,
)
from gpu_worker.engines.interface import (
    EngineError,
    EngineEvent,
    EventQueue,
    Evicted,
    Finished,
    RefusedByPolicy,
    Token,
    WorkOrder,
    queue_request,
)
from gpu_worker.engines.transformers.processors import LogprobRecorder
from gpu_worker.policies.admission import Admission
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.scheduling_stats import SchedulingStats


@dataclass(eq=False, slots=True)
class GeneratedAnswer:
    """One request, from `generate` to its last event. `input_tokens`: of the prompt, which every choice has."""

    request: WorkOrder
    input_tokens: int
    events: EventQueue = field(default_factory=EventQueue)
    sequences: list[Sequence] = field(default_factory=list)

    @property
    def output_tokens(self) -> int:
        """The tokens of all choices so far."""
        return sum(sequence.output_tokens for sequence in self.sequences)

    @property
    def ended(self) -> bool:
        return all(sequence.reason for sequence in self.sequences)

    def finished(self) -> Finished:
        """Return the last event. A request with an aborted choice is aborted."""
        reasons = tuple(sequence.reason for sequence in self.sequences)
        reason = "aborted" if "aborted" in reasons else reasons[0]
        return Finished(reason, self.input_tokens, self.output_tokens, reasons if len(reasons) > 1 else ())


@dataclass(eq=False, slots=True)
class Sequence:
    """One choice, a sequence in the batch, and what becomes of its tokens.

    `tools`: finds tool calls in the text; None for plain text. `reason`: of its end, empty before.
    """

    answer: GeneratedAnswer
    sequence_id: str
    choice: int
    detokenizer: Detokenizer
    stops: StopMatcher
    tools: ToolCallParser | None = None
    min_tokens: int = 0
    """Stop strings are not looked for in the text of the first `min_tokens` tokens."""
    output_tokens: int = 0
    chars: int = 0
    """Characters of all tokens so far, each by itself."""
    ending: str = "aborted"
    """The reason to report if the sequence is removed from the batch before its end."""
    reason: str = ""

    @property
    def request(self) -> WorkOrder:
        return self.answer.request

    @property
    def input_tokens(self) -> int:
        return self.answer.input_tokens

    def queued(self, now_s: float) -> QueueRequest:
        return queue_request(self.request, self.input_tokens, now_s, self.sequence_id)

    def take(self, token: int, *, last: bool, ends_text: bool, logprobs: dict[str, Any] | None) -> Token:
        """Return the event of a new token. `ends_text`: the token has no text. `last`: no token follows."""
        self.output_tokens += 1
        text = "" if ends_text else self.detokenizer.feed(token)
        if last:
            text += self.detokenizer.flush()
        if self.output_tokens > self.min_tokens:
            text = self.stops.feed(text)
        if last and not self.stops.stopped:
            text += self.stops.flush()
        parsed = self._parse_text(text, last=last or self.stops.stopped)
        delta = {"tool_calls": list(parsed.calls)} if parsed.calls else None
        return Token(parsed.text, self.answer.output_tokens, self.choice, delta, logprobs)

    def stopped(self) -> str:
        """Return the reason of an end that the model or a stop string made."""
        return "tool_calls" if self.tools is not None and self.tools.calls else "stop"

    def _parse_text(self, text: str, *, last: bool) -> ParsedText:
        if self.tools is None:
            return ParsedText(text)
        found = self.tools.feed(text)
        return ParsedText(found.text + self.tools.flush().text, found.calls) if last else found


class LogprobForms:
    """Puts the recorded log probabilities of a token into the form of its endpoint.

    `decode`: returns the text of one token. Use it in the engine thread only.
    """

    def __init__(self, recorder: LogprobRecorder, decode: Callable[[int], str]) -> None:
        self.recorder = recorder
        self._decode = decode

    def take(self, sequence: Sequence, token: int) -> dict[str, Any] | None:
        """Return the `logprobs` of the sequence's next token; None if the request does not have the field."""
        found = self.recorder.take(sequence.sequence_id)
        if found is None:
            return None
        text, offset = self._decode(token), sequence.chars
        sequence.chars += len(text)
        top = [(self._decode(each), logprob) for each, logprob in found.top]
        if sequence.request.endpoint is Endpoint.CHAT:
            return chat_form(text, found.logprob, top)
        return completion_form(text, found.logprob, top, offset)

    def forget(self, sequence_id: str) -> None:
        self.recorder.forget(sequence_id)


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
