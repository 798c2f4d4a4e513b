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

from dispatcher.model.answers import DONE, KEEPALIVE, AnswerHead, Choices, event, json_text, tokens_of
from dispatcher.model.commands import Waiting
from dispatcher.model.errors import AnsweredError, ServiceError
from dispatcher.model.kept import StoredAnswer
from dispatcher.model.requests import Endpoint
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
from functions.http_api.connections import WhileConnected


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
    _around: dict[int, tuple[bytes, bytes]] = field(default_factory=dict, init=False)
    """What stands before and after the text in an event with text alone, by choice."""

    async def write(self, item: WorkEvent) -> list[bytes]:
        if self._is_open and isinstance(item, Token) and item.text and not (item.delta or item.logprobs):
            return [self._write_text(item)]
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

    def _write_text(self, token: Token) -> bytes:
        """Return the event of a piece of text. All of a choice differ in the text alone, so the rest is made once."""
        around = self._around.get(token.choice)
        if around is None:
            empty = b'"content":""' if self.request.endpoint is Endpoint.CHAT else b'"text":""'
            before, _, after = event(self.head.chunk(Token("", 0, token.choice))).partition(empty)
            around = self._around[token.choice] = (before + empty[:-2], after)
        return around[0] + json_text(token.text) + around[1]

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
        self._ended = False

    def fail(self, error: AnsweredError) -> None:
        self._end(error.code, failed=isinstance(error, ServiceError))

    def end(self, outcome: str) -> None:
        self._end(outcome, failed=False)

    def _end(self, outcome: str, *, failed: bool) -> None:
        if self._ended:
            return
        self._ended = True
        following, first_at = self._following, self._following.first_token_at
        self._ended_calls.add(
            EndedCall.of(
                "http",
                following,
                outcome,
                output_tokens=following.answer.output_tokens,
                ended_at=self._clock.now(),
                ttft_ms=None if first_at is None else (first_at - following.call.created_at) * 1000,
                is_queued=self._queued,
                is_failed=failed,
            )
        )


HEADERS_AFTER_S = 10.0
"""A stream's headers wait this long for the first token, so that an earlier failure has its own HTTP status."""
_KEEPALIVE_S = 15.0

T = TypeVar("T")


async def respond(context: Context, accepted: NewCall, form: FormMaker, request: Request) -> Response:
    """Return the whole answer. Raises ClientDisconnect if the caller disconnects before it is complete."""
    observed = Observed(request.app.state.ended_calls, context.clock, accepted)
    try:
        with WhileConnected(request):
            answer = await _in_time(context, accepted.following.whole(), durable=accepted.call.is_durable)
    except AnsweredError as error:
        observed.fail(error)
        raise
    except ClientDisconnect:
        observed.end("disconnected")
        raise
    finally:
        accepted.leave()
    observed.end("done")
    body = await form(head_of_call(accepted.call)).whole(answer.choices(), answer.finished)
    return _whole(body, _headers(accepted))


async def respond_streaming(context: Context, accepted: NewCall, form: FormMaker, request: Request) -> Response:
    """Return the answer as server-sent events. Raises the error that ends the call before its first token."""
    observed = Observed(request.app.state.ended_calls, context.clock, accepted)
    try:
        with WhileConnected(request):
            first = await _beginning(accepted)
    except BaseException as error:
        accepted.leave()
        if isinstance(error, AnsweredError):
            observed.fail(error)
        observed.end("disconnected")  # unless it has ended already
        raise
    return _Streamed(accepted, first, form(head_of_call(accepted.call)), observed, request)


async def replay(context: Context, known: Known, asked: TenantRequest, form: FormMaker, request: Request) -> Response:
    """Return the answer of an earlier request under the same key, whole or streamed as `asked` wants it."""
    try:
        with WhileConnected(request):
            answer = await _in_time(context, result_of(context, known), durable=True)
    finally:
        known.leave()
    assert answer is not None  # noqa: S101 - it waits without a timeout
    written, headers = form(head_of(known.invocation)), {"x-request-id": known.invocation.id}
    if not asked.stream:
        return _whole(await written.whole(choices_of(answer), last_event(answer)), headers)
    return StreamingResponse(_replay(written, answer), media_type="text/event-stream", headers=headers)


class _Streamed(Response):
    """An answer whose `first` events are there. It leaves the call however the connection ends: also before the first
    byte, or while a byte is being sent."""

    media_type = "text/event-stream"

    def __init__(
        self,
        accepted: NewCall,
        first: list[WorkEvent | Pause],
        form: AnswerForm,
        observed: Observed,
        request: Request,
    ) -> None:
        self.status_code, self.background = 200, None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **_headers(accepted)})
        self._accepted, self._first, self._form = accepted, first, form
        self._observed, self._request = observed, request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with WhileConnected(self._request):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await self._send_events(send)
        except ClientDisconnect:
            pass  # nobody reads an answer to that
        finally:
            self._observed.end("disconnected")  # unless it has ended already
            self._accepted.leave()

    async def _send_events(self, send: Send) -> None:
        """Send the answer's events, from its first ones on. What is there at once goes out at once."""
        form, following, events = self._form, self._accepted.following, self._first
        try:
            while events[0] is not Pause.END:
                chunks: list[bytes] = []
                for each in events:
                    if isinstance(each, Finished) and chunks:  # what a form does at the end may take time
                        await send({"type": "http.response.body", "body": b"".join(chunks), "more_body": True})
                        chunks = []
                    chunks += await _chunks_of(form, each)
                if chunks:
                    await send({"type": "http.response.body", "body": b"".join(chunks), "more_body": True})
                events = await following.next_events(_KEEPALIVE_S)
            self._observed.end("done")
            last = form.end()
        except AnsweredError as error:
            self._observed.fail(error)
            last = form.failed(error)
        await send({"type": "http.response.body", "body": b"".join(last), "more_body": False})


async def _chunks_of(form: AnswerForm, item: WorkEvent | Pause) -> list[bytes]:
    if isinstance(item, Pause):
        return [] if item is Pause.END else [KEEPALIVE]
    return await form.write(item)


async def _beginning(accepted: NewCall) -> list[WorkEvent | Pause]:
    """Return the events up to the first token or the end, or those of HEADERS_AFTER_S and then WAITING.

    Started shows only that the engine has the request: the engine may still refuse it.
    """
    monotonic_s = asyncio.get_running_loop().time
    until_s = monotonic_s() + HEADERS_AFTER_S
    events: list[WorkEvent | Pause] = []
    while not events or isinstance(events[-1], Started):
        found = await accepted.following.next_events(max(0.0, until_s - monotonic_s()))
        events = found if isinstance(found[0], Started) else [*events, *found]  # a new attempt begins with another one
    return events


async def _replay(form: AnswerForm, answer: StoredAnswer) -> AsyncIterator[bytes]:
    events: list[WorkEvent] = [*tokens_of(choices_of(answer), answer.output_tokens), last_event(answer)]
    for item in events:
        for chunk in await form.write(item):
            yield chunk
    for chunk in form.end():
        yield chunk


async def _in_time(context: Context, work: Coroutine[Any, Any, T], *, durable: bool) -> T:
    """Return the work's result. In Lambda, raise DeadlineExceeded if it takes longer than a whole answer may."""
    if context.settings.front == "server":
        return await work
    whole_s = context.settings.lambda_whole_s
    try:
        async with asyncio.timeout(whole_s):
            return await work
    except TimeoutError:
        raise too_late(whole_s, durable=durable) from None


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
