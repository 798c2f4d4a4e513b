"""Answers over HTTP: whole or streamed, new or repeated. A disconnect of the caller ends the invocation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from dispatcher.model.answers import DONE, KEEPALIVE, AnswerHead, event
from dispatcher.model.errors import AnsweredError
from dispatcher.model.old_outcomes import Dispatched, Known, Queued
from dispatcher.model.requests import Request as TenantRequest
from dispatcher.model.worker_protocol import Finished, Token, WorkEvent
from dispatcher.old_operations.answer import answer, result_of
from dispatcher.old_operations.context import Context
from dispatcher.old_operations.execute import Collected
from dispatcher.old_operations.submit import Submission
from functions.http_api.observe import Observed
from functions.rendering import rendered

HEADERS_AFTER_S = 10.0
"""A stream's headers wait this long for the first event, so that an early failure has its own HTTP status."""
KEEPALIVE_S = 15.0

T = TypeVar("T")


async def respond(
    context: Context, submission: Submission, accepted: Dispatched | Queued, head: AnswerHead, request: Request
) -> Response:
    """Return the whole answer. Raises ClientDisconnect if the caller disconnects before it is complete."""
    collected = Collected()
    observed = Observed(context, accepted)

    async def collect() -> None:
        async with aclosing(_answer(context, submission, accepted, head)) as events:
            async for item in events:
                collected.note(item)
                observed.note(item)

    try:
        await _unless_gone(request, collect())
    except AnsweredError as error:
        observed.end(error.code)
        raise
    except ClientDisconnect:
        observed.end("disconnected")
        raise
    observed.end("done")
    return Response(rendered(head, collected).body, media_type="application/json", headers=_headers(accepted))


async def respond_streaming(
    context: Context, submission: Submission, accepted: Dispatched | Queued, head: AnswerHead, request: Request
) -> Response:
    """Return the answer as server-sent events. Raises the error that ends the invocation before its first event."""
    events = _answer(context, submission, accepted, head)
    observed = Observed(context, accepted)
    first = asyncio.ensure_future(anext(events))
    try:
        await _unless_gone(request, _settled_within(first, HEADERS_AFTER_S))
        if first.done():
            first.result()
    except BaseException as error:
        first.cancel()
        context.spawn(_close(first, events))
        observed.end(error.code if isinstance(error, AnsweredError) else "disconnected")
        raise
    reading = _Reading(events, first)
    stream = _stream(reading, head, submission.request.include_usage, observed)
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no", **_headers(accepted)}
    return _Streamed(stream, reading, observed, headers)


async def replay(context: Context, known: Known, request: TenantRequest, head: AnswerHead) -> Response:
    """Return the answer of an earlier request under the same id, whole or streamed as `request` wants it."""
    result = await result_of(context, known)
    if not request.stream:
        return Response(result.body, result.status, media_type="application/json")
    return StreamingResponse(_replayed(json.loads(result.body), head, request), media_type="text/event-stream")


def _answer(
    context: Context, submission: Submission, accepted: Dispatched | Queued, head: AnswerHead
) -> AsyncGenerator[WorkEvent, None]:
    render = (lambda collected: rendered(head, collected)) if submission.keep_answer else None
    return answer(context, submission, accepted, render)


@dataclass(slots=True)
class _Reading:
    """The events of an answer, and the future of the next one."""

    events: AsyncGenerator[WorkEvent, None]
    upcoming: asyncio.Future[WorkEvent]


class _Streamed(StreamingResponse):
    """Closes its events however the connection ends: also before the first byte, or while a byte is being sent."""

    def __init__(
        self, chunks: AsyncIterator[bytes], reading: _Reading, observed: Observed, headers: Mapping[str, str]
    ) -> None:
        super().__init__(chunks, media_type="text/event-stream", headers=headers)
        self._reading = reading
        self._observed = observed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._observed.end("disconnected")  # unless it has ended already
            self._reading.upcoming.cancel()
            self._observed.context.spawn(_close(self._reading.upcoming, self._reading.events))


async def _stream(reading: _Reading, head: AnswerHead, include_usage: bool, observed: Observed) -> AsyncIterator[bytes]:
    opening = head.first_chunk()
    try:
        while True:
            await asyncio.wait({reading.upcoming}, timeout=KEEPALIVE_S)
            if not reading.upcoming.done():
                yield KEEPALIVE
                continue
            try:
                item = reading.upcoming.result()
            except StopAsyncIteration:
                break
            observed.note(item)
            for chunk in _chunks(item, head, include_usage):
                if opening is not None:
                    yield event(opening)
                    opening = None
                yield event(chunk)
            reading.upcoming = asyncio.ensure_future(anext(reading.events))
        observed.end("done")
        yield DONE
    except AnsweredError as error:
        observed.end(error.code)
        yield event(error.body_with_retry())
        yield DONE


def _chunks(item: WorkEvent, head: AnswerHead, include_usage: bool) -> list[dict[str, Any]]:
    if isinstance(item, Token):
        return [head.text_chunk(item.text)] if item.text else []
    if not isinstance(item, Finished):
        return []
    last = [head.last_chunk(item.reason)]
    return [*last, head.usage_chunk(item.input_tokens, item.output_tokens)] if include_usage else last


async def _replayed(body: Mapping[str, Any], head: AnswerHead, request: TenantRequest) -> AsyncIterator[bytes]:
    choice, spent = body["choices"][0], body["usage"]
    opening = head.first_chunk()
    if opening is not None:
        yield event(opening)
    yield event(head.text_chunk(choice["message"]["content"] if request.chat else choice["text"]))
    yield event(head.last_chunk(choice["finish_reason"]))
    if request.include_usage:
        yield event(head.usage_chunk(spent["prompt_tokens"], spent["completion_tokens"]))
    yield DONE


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the work's result. If the caller disconnects first, cancel the work and raise ClientDisconnect."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
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


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _settled_within(future: asyncio.Future[Any], timeout_s: float) -> None:
    await asyncio.wait({future}, timeout=timeout_s)


async def _close(upcoming: asyncio.Future[Any], events: AsyncGenerator[Any, None]) -> None:
    """Close an iterator; its next item may still be pending."""
    await asyncio.wait({upcoming})
    await events.aclose()


def _headers(accepted: Dispatched | Queued) -> dict[str, str]:
    headers = {"x-request-id": accepted.invocation.id}
    if isinstance(accepted, Queued):
        headers["x-headgate-queue-position"] = str(accepted.position)
        headers["x-headgate-estimated-wait-ms"] = str(round(accepted.wait_s * 1000))
    return headers
