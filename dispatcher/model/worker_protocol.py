"""The protocol between gate and worker: a work order, and the events that answer it. Pure.

dispatcher/worker_wire.py encodes and decodes these types for both sides, and checks the bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ulp
from typing import Annotated, Any, Literal

from dispatcher.model.requests import Endpoint
from dispatcher.model.tracing import TRACEPARENT
from dispatcher.policies.bounds import Bounds, Pattern
from dispatcher.policies.tiers import Tier

SEED_MAX = 2**63 - 1
ATTEMPT_MAX = 1_000_000
"""Far above ATTEMPTS_MAX, because an offer that is not begun uses up a number too."""
RETRY_AFTER_MAX_S = 86_400.0
ABOVE_ZERO = ulp(0.0)
"""The smallest positive float."""

Name = Annotated[str, Bounds(1, 128)]
Label = Annotated[str, Bounds(0, 64)]
Choice = Annotated[int, Bounds(0, 10_000)]


def execution_name(call_id: str, attempt: int) -> str:
    """Return the name of an attempt: `id#attempt`."""
    return f"{call_id}#{attempt}"


def parse_execution(name: str) -> tuple[str, int]:
    """Return (call id, attempt) of an execution's name. Raises ValueError."""
    call_id, _, attempt = name.rpartition("#")
    return call_id, int(attempt)


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """One execution that the gate orders from a worker.

    `body` has the fields of the tenant's request that the gate passes on unchanged (Request.body).

    The gate sets `weight` (of the tenant's share) and `tier`; a client cannot. The client sets `app`, `stage` and
    `interaction`: on the worker they order the tenant's own requests, and affect no other tenant.
    """

    tenant: Name
    invocation: Name
    """The id of the call in the log; no other call of any tenant has it."""
    attempt: Annotated[int, Bounds(1, ATTEMPT_MAX)]
    model: Annotated[str, Bounds(1, 200)]
    weight: Annotated[float, Bounds(ABOVE_ZERO, 1e9)]
    tier: Tier
    deadline_at: Annotated[float, Bounds(0, 1e12)]
    """Unix seconds."""
    endpoint: Endpoint
    body: dict[str, Any]
    max_tokens: Annotated[int, Bounds(0, 10_000_000)]
    """The most output tokens of each choice; 0 for embeddings."""
    expected_tokens: Annotated[int, Bounds(0, 10_000_000)] | None
    """None if the client set `max_tokens`. Otherwise the output tokens of each choice that the gate expects; the engine
    then shortens `max_tokens` to what fits beside the prompt."""
    choices: Annotated[int, Bounds(1, 10_000)]
    app: Label
    stage: Annotated[int, Bounds(0, 10_000)]
    interaction: Label
    durable: bool
    """True if the answer is kept for the caller. Then the worker reports the answer with the end, and goes on when the
    stream is closed."""
    streamed: bool
    """True if the caller gets each token at once. Otherwise it gets nothing of an attempt that does not finish."""
    deferred: bool
    """True if the request uses what others leave (a deferred SLO class). Its tier is background, but it is not shed: it
    was dispatched because the worker had a free slot and no other request waited."""
    cache_salt: Label
    """Separates the tenant's prefixes from others in the worker's cache. The worker client sets it when it signs."""
    trace: Annotated[str, Pattern(TRACEPARENT)] = ""
    """The traceparent of this attempt's span at the gate; empty if the gate traces nothing."""

    @property
    def likely_tokens(self) -> int:
        """The output tokens of each choice that estimates count."""
        return self.max_tokens if self.expected_tokens is None else self.expected_tokens

    @property
    def execution(self) -> str:
        """The name of this attempt, in execution tokens and reports."""
        return execution_name(self.invocation, self.attempt)


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt was tokenized and is in the engine's queue."""

    input_tokens: int
    event: Literal["started"] = field(default="started", kw_only=True)


@dataclass(frozen=True, slots=True)
class Token:
    """A new piece of the answer. `output_tokens` counts all tokens so far, of all choices, also those held back or cut
    off by `stop`.

    `text` is new text of the choice with the number `choice`. `delta` has the other fields of OpenAI's delta as the
    engine sent them (tool_calls, reasoning …), without the role. For embeddings, `choice` is the number of the input,
    and `delta` is {"embedding": numbers, or base64 text}. `logprobs` is OpenAI's object for this piece.
    """

    text: str
    output_tokens: int
    choice: Choice = 0
    delta: Mapping[str, Any] | None = None
    logprobs: Mapping[str, Any] | None = None
    event: Literal["token"] = field(default="token", kw_only=True)


@dataclass(frozen=True, slots=True)
class Finished:
    """The execution has ended. `reason` is "stop", "length", "tool_calls" or another of OpenAI's, or "aborted".

    `reasons`: of each choice, if there is more than one choice. `cached_tokens`: the part of the input that the engine
    found in its prefix cache. `reasoning_tokens`: the part of the output that is reasoning. Both are 0 for an engine
    that does not count them.
    """

    reason: str
    input_tokens: int
    output_tokens: int
    reasons: tuple[str, ...] = ()
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    event: Literal["finished"] = field(default="finished", kw_only=True)


@dataclass(frozen=True, slots=True)
class WorkRefused:
    """The worker does not execute this order, or ends it early. `status` is an HTTP status.

    If `final`, the log has the end of the call, and this error is its answer (refusals.py). Otherwise the attempt goes
    back to the gate, which may offer the call again. `retry_after_s`: seconds until a new try makes sense; None if
    unknown.
    """

    status: int
    code: str
    message: str
    retry_after_s: Annotated[float, Bounds(0, RETRY_AFTER_MAX_S)] | None = None
    final: bool = False
    event: Literal["refused"] = field(default="refused", kw_only=True)


@dataclass(frozen=True, slots=True)
class Alive:
    """The worker still works on the order and has nothing else to report. The worker client drops this event."""

    event: Literal["alive"] = field(default="alive", kw_only=True)


WorkEvent = Started | Token | Finished | WorkRefused
