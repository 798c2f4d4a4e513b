"""Answers over HTTP: whole or streamed, new or repeated. A disconnect of the caller ends the invocation.

A form writes one answer, whole or as a stream: as a chat or a completion here, and as a response in responses.py. It
gets the events of the answer, and what it returns is sent.

Each invocation leaves a log line and its metrics (functions/ended_calls.py).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from dispatcher.model.answers import DONE, KEEPALIVE, AnswerHead, Choices, event, tokens_of
from dispatcher.model.commands import Waiting
from dispatcher.model.errors import AnsweredError, ServiceError
from dispatcher.model.kept import StoredAnswer
from dispatcher.model.requests import Request as TenantRequest
from dispatcher.model.worker_protocol import Finished, Started, Token, WorkEvent
from dispatcher.operations.calls.answer import head_of, head_of_call, result_of
from dispatcher.operations.calls.followed import Pause
from dispatcher.operations.calls.results import choices_of, last_event
from dispatcher.operations.calls.submit import Known, NewCall
from dispatcher.operations.context import Context
from dispatcher.operations.limits import too_late
from dispatcher.ports import Clock
from functions.ended_calls import EndedCall, EndedCalls


class AnswerForm(Protocol):
    async def write(self, item: WorkEvent) -> list[bytes]:
        """Return the server-sent events for an event of the answer."""
        ...

    def failed(self, error: AnsweredError) -> list[bytes]:
        """Return the server-sent events that end the stream with an error."""
        ...

    def end(self) -> list[bytes]:
        """Return what comes after the last event of a complete answer."""
        ...

    async def whole(self, choices: Choices, finished: Finished) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        ...


FormMaker = Callable[[AnswerHead], AnswerForm]


@dataclass(slots=True)
class ChatForm:
    """A chat, a completion or embeddings."""

    head: AnswerHead
    request: TenantRequest
    _is_open: bool = field(default=False, init=False)

    async def write(self, item: WorkEvent) -> list[bytes]:
        chunks = self._chunks(item)
        if chunks and not self._is_open:
            self._is_open = True
            chunks = [*self.head.opening(self.request.choices), *chunks]
        return [event(chunk) for chunk in chunks]

    def failed(self, error: AnsweredError) -> list[bytes]:
        return [event(error.body_with_retry()), DONE]

    def end(self) -> list[bytes]:
        return [DONE]

    async def whole(self, choices: Choices, finished: Finished) -> dict[str, Any]:
        return self.head.body(choices, finished)

    def _chunks(self, item: WorkEvent) -> list[dict[str, Any]]:
        if isinstance(item, Token):
            return [self.head.chunk(item)] if item.text or item.delta or item.logprobs else []
        if not isinstance(item, Finished):
            return []
        last = self.head.last_chunks(item)
        if not self.request.include_usage:
            return last
        return [*last, self.head.usage_chunk(item)]


class Observed:
    """Times one invocation from its arrival. The first call of `end` or `fail` counts, later ones do nothing."""

    def __init__(self, ended_calls: EndedCalls, clock: Clock, accepted: NewCall) -> None:
        self._ended_calls = ended_calls
        self._clock = clock
        self._following = accepted.following
        self._queued = isinstance(accepted.outcome, Waiting)
        self._ttft_ms: float | None = None
        self._tokens = 0
        self._ended = False

    def note(self, item: WorkEvent) -> None:
        if isinstance(item, Started):  # again: the attempt before it was lost, and its tokens with it
            self._ttft_ms = None
        if isinstance(item, Token | Finished):
            self._tokens = item.output_tokens
            if self._ttft_ms is None:
                self._ttft_ms = self._elapsed_ms()

    def fail(self, error: AnsweredError) -> None:
        self._end(error.code, failed=isinstance(error, ServiceError))

    def end(self, outcome: str) -> None:
        self._end(outcome, failed=False)

    def _end(self, outcome: str, *, failed: bool) -> None:
        if self._ended:
            return
        self._ended = True
        self._ended_calls.add(
            EndedCall.of(
                "http",
                self._following,
                outcome,
                output_tokens=self._tokens,
                ended_at=self._clock.now(),
                ttft_ms=self._ttft_ms,
                is_queued=self._queued,
                is_failed=failed,
            )
        )

    def _elapsed_ms(self) -> float:
        return (self._clock.now() - self._following.call.created_at) * 1000


HEADERS_AFTER_S = 10.0
"""A stream's headers wait this long for the first token, so that an earlier failure has its own HTTP status."""
_KEEPALIVE_S = 15.0

T = TypeVar("T")


async def respond(context: Context, accepted: NewCall, form: FormMaker, request: Request) -> Response:
    """Return the whole answer. Raises ClientDisconnect if the caller disconnects before it is complete."""
    observed = Observed(request.app.state.ended_calls, context.clock, accepted)

    async def collect() -> None:
        async for item in accepted.following.events():
            observed.note(item)

    try:
        await _run_while_connected(request, _in_time(context, collect(), durable=accepted.call.is_durable))
    except AnsweredError as error:
        observed.fail(error)
        raise
    except ClientDisconnect:
        observed.end("disconnected")
        raise
    finally:
        accepted.leave()
    observed.end("done")
    answer = accepted.following.answer
    body = await form(head_of_call(accepted.call)).whole(answer.choices(), answer.finished)
    return _whole(body, _headers(accepted))


async def respond_streaming(context: Context, accepted: NewCall, form: FormMaker, request: Request) -> Response:
    """Return the answer as server-sent events. Raises the error that ends the call before its first token."""
    observed = Observed(request.app.state.ended_calls, context.clock, accepted)
    try:
        first = await _run_while_connected(request, _beginning(accepted))
    except BaseException as error:
        accepted.leave()
        if isinstance(error, AnsweredError):
            observed.fail(error)
        observed.end("disconnected")  # unless it has ended already
        raise
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no", **_headers(accepted)}
    chunks = _stream(accepted, first, form(head_of_call(accepted.call)), observed)
    return _Streamed(chunks, accepted, observed, headers)


async def replay(context: Context, known: Known, asked: TenantRequest, form: FormMaker, request: Request) -> Response:
    """Return the answer of an earlier request under the same key, whole or streamed as `asked` wants it."""
    try:
        answer = await _run_while_connected(request, _in_time(context, result_of(context, known), durable=True))
    finally:
        known.leave()
    assert answer is not None  # noqa: S101 - it waits without a timeout
    written, headers = form(head_of(known.invocation)), {"x-request-id": known.invocation.id}
    if not asked.stream:
        return _whole(await written.whole(choices_of(answer), last_event(answer)), headers)
    return StreamingResponse(_replay(written, answer), media_type="text/event-stream", headers=headers)


class _Streamed(StreamingResponse):
    """Leaves the call however the connection ends: also before the first byte, or while a byte is being sent."""

    def __init__(
        self, chunks: AsyncIterator[bytes], accepted: NewCall, observed: Observed, headers: Mapping[str, str]
    ) -> None:
        super().__init__(chunks, media_type="text/event-stream", headers=headers)
        self._accepted = accepted
        self._observed = observed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._observed.end("disconnected")  # unless it has ended already
            self._accepted.leave()


async def _beginning(accepted: NewCall) -> list[WorkEvent | Pause]:
    """Return the events up to the first token or the end, or those of HEADERS_AFTER_S and then WAITING.

    Started shows only that the engine has the request: the engine may still refuse it.
    """
    monotonic_s = asyncio.get_running_loop().time
    until_s = monotonic_s() + HEADERS_AFTER_S
    events: list[WorkEvent | Pause] = []
    while not events or isinstance(events[-1], Started):
        event = await accepted.following.next_event(max(0.0, until_s - monotonic_s()))
        events = [event] if isinstance(event, Started) else [*events, event]  # a new attempt begins with another one
    return events


async def _stream(
    accepted: NewCall, first: list[WorkEvent | Pause], form: AnswerForm, observed: Observed
) -> AsyncIterator[bytes]:
    """Yield the answer's bytes, from its `first` events on."""
    try:
        item = first.pop(0)
        while item is not Pause.END:
            if isinstance(item, Pause):
                yield KEEPALIVE
            else:
                observed.note(item)
                for chunk in await form.write(item):
                    yield chunk
            item = first.pop(0) if first else await accepted.following.next_event(_KEEPALIVE_S)
        observed.end("done")
        for chunk in form.end():
            yield chunk
    except AnsweredError as error:
        observed.fail(error)
        for chunk in form.failed(error):
            yield chunk


async def _replay(form: AnswerForm, answer: StoredAnswer) -> AsyncIterator[bytes]:
    events: list[WorkEvent] = [*tokens_of(choices_of(answer), answer.output_tokens), last_event(answer)]
    for item in events:
        for chunk in await form.write(item):
            yield chunk
    for chunk in form.end():
        yield chunk


async def _run_while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the work's result. If the caller disconnects first, cancel the work and raise ClientDisconnect."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_await_disconnect(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect()
        return working.result()
    finally:
        gone.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})


async def _in_time(context: Context, work: Coroutine[Any, Any, T], *, durable: bool) -> T:
    """Return the work's result. In Lambda, raise DeadlineExceeded if it takes longer than a whole answer may."""
    front = context.settings.frozen
    if front is None:
        return await work
    try:
        async with asyncio.timeout(front.whole_s):
            return await work
    except TimeoutError:
        raise too_late(front, durable=durable) from None


async def _await_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _whole(body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
    return Response(json.dumps(body), media_type="application/json", headers=dict(headers))


def _headers(accepted: NewCall) -> dict[str, str]:
    headers = {"x-request-id": accepted.call.id}
    outcome = accepted.outcome
    if isinstance(outcome, Waiting):
        headers["x-headgate-queue-position"] = str(outcome.position)
        if outcome.wait_s is not None and outcome.wait_p90_s is not None:
            headers["x-headgate-estimated-wait-ms"] = str(round(outcome.wait_s * 1000))
            headers["x-headgate-estimated-wait-p90-ms"] = str(round(outcome.wait_p90_s * 1000))
    return headers
