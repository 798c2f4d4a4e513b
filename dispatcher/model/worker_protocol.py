"""The protocol between gate and worker: a work order, and the events that answer it. Pure.

dispatcher/workers/wire.py encodes and decodes these types for both sides, and checks their bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Any, Literal

from dispatcher.model.call import CallTerms
from dispatcher.model.requests import Endpoint
from dispatcher.policies.bounds import Bounds
from dispatcher.policies.tiers import Tier

ATTEMPT_MAX = 1_000_000
"""Far above ATTEMPTS_MAX, because an offer that is not begun uses up a number too."""
_RETRY_AFTER_MAX_S = 86_400.0

CHOICE_MAX = 10_000
_Choice = Annotated[int, Bounds(0, CHOICE_MAX)]


def execution_name(call_id: str, attempt: int) -> str:
    """Return the name of an attempt: `id#attempt`."""
    return f"{call_id}#{attempt}"


def parse_execution(name: str) -> tuple[str, int]:
    """Return (call id, attempt) of an execution's name. Raises ValueError."""
    call_id, _, attempt = name.rpartition("#")
    return call_id, int(attempt)


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """One execution that the gate orders from a worker, and the worker from its engine.

    `body` has the fields of the tenant's request that the gate passes on unchanged (Request.body).

    The gate sets `weight` (of the tenant's share) and `tier`; a client cannot. The client sets `stage`, `terms.app` and
    `terms.interaction`: on the worker they order the tenant's own requests, and affect no other tenant.
    """

    terms: CallTerms
    """A worker gets those that dispatcher/workers/wire.py names, without cost and SLO class. A deferred request has the
    tier background, but it is not shed: it was dispatched because the worker had a free slot and no other request
    waited."""
    invocation: str
    """The id of the call in the log; no other call of any tenant has it."""
    attempt: int
    """0 for a request of the worker itself, which no gate ordered."""
    body: Mapping[str, Any]
    max_tokens: int
    """The most output tokens of each choice; 0 for embeddings."""
    endpoint: Endpoint = Endpoint.COMPLETION
    choices: int = 1
    expected_tokens: int | None = None
    """None if the client set `max_tokens`. Otherwise the output tokens of each choice that the gate expects; the engine
    then shortens `max_tokens` to what fits beside the prompt."""
    weight: float = 1.0
    tier: Tier = Tier.STANDARD
    stage: int = 0
    streamed: bool = False
    """True if the caller gets each token at once. Otherwise it gets nothing of an attempt that does not finish, and the
    worker sends the text in few pieces."""
    cache_salt: str = ""
    """Separates the tenant's prefixes from others in the worker's cache. The worker client sets it when it signs."""
    prefix_group: str = ""
    """The tenant's (model/tenants.py), for the salt. It is not sent: a worker gets the salt alone."""
    trace: str = ""
    """The traceparent of this attempt's span at the gate; empty if the gate traces nothing."""
    timeout_s: float = inf
    """Seconds from now after which the answer is useless. The worker sets it when its engine gets the order."""

    @property
    def is_open(self) -> bool:
        """Whether the client set no limit."""
        return self.expected_tokens is not None

    @property
    def likely_tokens(self) -> int:
        """The output tokens of each choice that estimates count."""
        return self.max_tokens if self.expected_tokens is None else self.expected_tokens

    @property
    def execution(self) -> str:
        """The name of this attempt, in execution tokens, reports and the engine."""
        return execution_name(self.invocation, self.attempt) if self.attempt else self.invocation


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
    choice: _Choice = 0
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

    If `final`, the log has the end of the call, and this error is its answer (answers.py). Otherwise the attempt goes
    back to the gate, which may offer the call again. `retry_after_s`: seconds until a new try makes sense; None if
    unknown.
    """

    status: int
    code: str
    message: str
    retry_after_s: Annotated[float, Bounds(0, _RETRY_AFTER_MAX_S)] | None = None
    final: bool = False
    event: Literal["refused"] = field(default="refused", kw_only=True)


@dataclass(frozen=True, slots=True)
class Alive:
    """The worker still works on the order and has nothing else to report. The worker client drops this event."""

    event: Literal["alive"] = field(default="alive", kw_only=True)


WorkEvent = Started | Token | Finished | WorkRefused
