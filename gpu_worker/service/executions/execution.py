"""The state of one execution: its order, the output so far, the reason of an abort, and its spans."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from enum import Enum

from dispatcher.model.answers import Collected
from dispatcher.model.tracing import NO_SPAN, Span, Tracing
from dispatcher.model.worker_protocol import Finished, Started, Token, WorkOrder
from dispatcher.wakeup import Wakeup
from gpu_worker.engines.interface import EngineError, EngineEvent

_PREEMPTED = frozenset({"preempted", "preempted_too_often"})
"""The codes of an engine's error for a request that it evicted for good."""


EVENTS_AHEAD_MAX = 64
"""The most events of an execution that wait for its caller."""


class EventsAhead:
    """Reads an execution's events in a task of its own, up to EVENTS_AHEAD_MAX ahead of its caller. After Started it
    waits, so that an execution that was aborted before gets no token.

    A task and a timeout for each event would cost a worker as much as all the rest that it does for a token.
    """

    def __init__(self, events: AsyncGenerator[EngineEvent, None]) -> None:
        self._events = events
        self._ready: list[EngineEvent] = []
        self._error: Exception | None = None
        self._arrived, self._room = Wakeup(), Wakeup()
        self._task = asyncio.ensure_future(self._run())

    async def next(self, within_s: float) -> list[EngineEvent]:
        """Return the events that are there, or wait for one; none if there is none within the time.

        Raises what the engine raised.
        """
        if not self._ready and self._error is None:
            await self._arrived.wait(within_s)
        if self._ready:
            ready, self._ready = self._ready, []
            self._room.set()
            return ready
        if self._error is not None:
            raise self._error
        return []

    async def _run(self) -> None:
        try:
            async for event in self._events:
                self._ready.append(event)
                self._arrived.set()
                if isinstance(event, Finished):
                    return
                if isinstance(event, Started) or len(self._ready) >= EVENTS_AHEAD_MAX:
                    await self._room.wait(None)
            self._error = RuntimeError("the engine stopped without a last event")
        except asyncio.CancelledError:
            self._error = RuntimeError("the engine's stream was cancelled")
            raise
        except Exception as error:
            self._error = error
        finally:
            self._arrived.set()


class ExecutionSpans:
    """The spans of one execution on its worker (docs/watching.md). All of them are children of the gate's attempt: if
    the worker is killed, no span that it has sent refers to one that it has not.

    `queued` from the order's arrival to the first token, `generated` to the engine's end, `settled` until the log has
    the report.
    """

    def __init__(self, tracing: Tracing, order: WorkOrder, worker: str) -> None:
        self._tracing, self._order, self._worker = tracing, order, worker
        self._open = self._span("queued")

    def first_token(self) -> None:
        self._open.end("first_token")
        self._open = self._span("generated")

    def settle(self, outcome: str, code: str, counts: dict[str, int]) -> Span:
        """End what the engine did. `code`: of its error, or "". Return the span of the report's way to the log."""
        if code in _PREEMPTED:
            self._open.event("preempted")
        self._open.end(code or outcome, **counts)
        return self._span("settled")

    def _span(self, name: str) -> Span:
        order = self._order
        if not order.trace:
            return NO_SPAN
        return self._tracing.span(
            name,
            order.trace,
            {
                "headgate.tenant": order.terms.tenant,
                "headgate.model": order.terms.model,
                "headgate.tier": order.tier.value,
                "headgate.invocation": order.invocation,
                "headgate.attempt": order.attempt,
                "headgate.worker": self._worker,
            },
        )


BUNDLE_S = 1.0
"""The longest time for which a bundle waits for more text while there are events. Without any it goes out with the next
sign of life."""
_BUNDLE_CHARS_MAX = 65_536


class Bundles:
    """The text of an answer that its caller gets as a whole: it travels in few events, which costs the gate less.

    The first token goes at once, because its time counts. Tokens with other fields than text are not bundled.
    """

    def __init__(self, now_s: float) -> None:
        self._texts: dict[int, list[str]] = {}
        self._output_tokens = self._chars = 0
        self._has_begun = False
        self._sent_s = now_s

    def add(self, event: EngineEvent, now_s: float) -> list[EngineEvent]:
        """Add the event. Return what is to be sent now."""
        if not isinstance(event, Token) or event.delta or event.logprobs or not self._has_begun:
            self._has_begun = self._has_begun or isinstance(event, Token)
            return [*self.take(now_s), event]
        self._texts.setdefault(event.choice, []).append(event.text)
        self._output_tokens = event.output_tokens
        self._chars += len(event.text)
        return self.take(now_s) if self._chars > _BUNDLE_CHARS_MAX or now_s - self._sent_s >= BUNDLE_S else []

    def take(self, now_s: float) -> list[EngineEvent]:
        """Return all text that waits, one event for each choice."""
        texts, self._texts = self._texts, {}
        self._chars, self._sent_s = 0, now_s
        return [Token("".join(each), self._output_tokens, choice) for choice, each in texts.items()]


ANSWER_BYTES_MAX = 340_000
"""The longest answer that is stored for a durable call, in bytes of UTF-8. An answer in a store has at most 350,000."""


class Abort(Enum):
    """The reasons for which the engine must end an execution early."""

    CALLER_LEFT = "the stream was closed"
    LATE = "the deadline passed"
    DRAINED = "the worker stops"
    CUT_OFF = "the worker cannot reach the gate"
    SWAPPED = "the worker loads another model"
    LEASE_LOST = "the log does not hold the attempt"


@dataclass(eq=False, slots=True)
class Execution:
    """The state of one execution. `begun_s`: the time of its order's arrival, by the worker's monotonic clock."""

    order: WorkOrder
    begun_s: float
    events: AsyncGenerator[EngineEvent, None]
    spans: ExecutionSpans
    ahead: EventsAhead | None = None
    """What was read of the events; None until the first step."""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    adapter_loaded: bool = False
    """Whether its LoRA adapter was loaded for it (adapter_loads.py)."""
    first_token_s: float = 0.0
    """Seconds from the arrival to the first token; 0 if there was none."""
    result: Finished | EngineError | None = None
    """The engine's last event or its error; None while the execution runs."""
    abort: Abort | None = None
    """The reason for which the engine must end the execution, as soon as it has the request; None if it may run on."""
    caller_left: bool = False
    """True if the caller closed the stream before its last event."""
    size_bytes: int = 0
    collected: Collected = field(default_factory=Collected)
    """The answer of a durable call so far; empty for any other call, and if the answer is too long to be stored."""

    @property
    def name(self) -> str:
        return self.order.execution

    def note(self, event: EngineEvent, now_s: float) -> None:
        """Record an event that arrived at `now_s` of the worker's monotonic clock."""
        if not isinstance(event, Token):
            self.input_tokens = event.input_tokens
        if not isinstance(event, Started):
            self.output_tokens = event.output_tokens
        if isinstance(event, Finished):
            self.cached_tokens = event.cached_tokens
        if isinstance(event, Token) and not self.first_token_s:
            self.first_token_s = now_s - self.begun_s
            self.spans.first_token()
        if self.order.terms.durable:
            self._collect(event)

    def counts(self) -> dict[str, int]:
        return {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}

    @property
    def is_too_long(self) -> bool:
        """Whether the answer of a durable call is too long to be stored."""
        return self.size_bytes > ANSWER_BYTES_MAX

    def _collect(self, event: EngineEvent) -> None:
        if isinstance(event, Token):
            self.size_bytes += len(event.text.encode("utf-8", "replace"))
            self.size_bytes += sum(len(json.dumps(part)) for part in (event.delta, event.logprobs) if part)
        if self.is_too_long:
            self.collected = Collected()
        else:
            self.collected.note(event)
