"""The HTTP client for one OpenAI-compatible server. Closing a stream of events closes its connection.

That is how a request is aborted: OpenAI's protocol has no other way, and all servers that headgate knows stop the work
for a caller that has left.

The head of a response has its status, its encoding and its Retry-After. The functions that read them are pure.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from dispatcher.model.requests import Endpoint
from gpu_worker.engines.interface import EngineError, EngineEvent, WorkOrder
from gpu_worker.engines.openai.events import ArrivingAnswer, embedding_events
from gpu_worker.engines.openai.normal.answer import Normal, Oddities
from gpu_worker.engines.openai.normal.faults import error_of_status, failed
from gpu_worker.engines.openai.normal.usage import Counts
from gpu_worker.engines.openai.normal.values import parse_json
from gpu_worker.engines.openai.server_api import PATHS, ServerFacts, ServerOptions, answers, offered_tools, server_body
from gpu_worker.engines.openai.sse import WHOLE_BYTES_MAX, BodyReader, Nonsense, ServerEvent

logger = logging.getLogger("headgate.engine")

_WRITE_S = 60.0
IDLE_S = 4.0
"""Idle connections are closed after this time. uvicorn closes them after 5 s, and then a request could not be sent."""
IDLE_CONNECTIONS_MAX = 64
_MODELS_BYTES_MAX = 1_000_000
_ERROR_BYTES_MAX = 65_536
_EVENT_BYTES_MAX = 16_384
"""The most bytes of the events of one token, comments included. Twenty logprobs take about 3,000."""
_BODY_BYTES_MIN = 4_000_000
RETRY_AFTER_MAX_S = 86_400.0
_CLOSING_S = 2.0
"""The longest wait for the usage after the last choice, and for the end of the body."""
_NOT_CONNECTED = (httpx.ConnectError, httpx.ConnectTimeout)
_BROKEN_OFF = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)


class NotConnected(Exception):
    """No connection to the server could be made."""


class OpenAiClient:
    """Create it in the event loop that uses it. It never follows a redirect, and asks for no compression."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        headers = {"accept-encoding": "identity", "user-agent": "headgate"}
        if options.key is not None:
            headers["authorization"] = f"Bearer {options.key}"
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(options.silence_s, connect=options.connect_s, write=_WRITE_S, pool=None),
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=IDLE_CONNECTIONS_MAX, keepalive_expiry=IDLE_S
            ),
            transport=options.transport() if options.transport is not None else None,
            trust_env=False,
        )
        self._closing: set[asyncio.Task[None]] = set()
        self.oddities = Oddities()

    async def models(self) -> dict[str, Any]:
        """Return the body of GET /models. Raises httpx.HTTPError, also for an HTTP error, and Nonsense."""
        request = self._http.build_request("GET", self._url("/models"), timeout=self.options.connect_s)
        async with self._response(request) as response:
            response.raise_for_status()
            return parse_json(await _whole(response, _MODELS_BYTES_MAX))

    async def events(
        self, request: WorkOrder, server: ServerFacts, input_tokens: int
    ) -> AsyncGenerator[EngineEvent, None]:
        """Yield Token events, then Finished. Yield Started before them if the server reports other than `input_tokens`,
        an estimate.

        Raises EngineError if the server refuses the request, stops in the middle, is silent or sends nonsense, and
        NotConnected.
        """
        fields = self.options.fields(request)
        body = server_body(request, server.facts, fields, continuous_usage=server.continuous_usage)
        counts = Counts(request.max_tokens, answers(request), server.facts.context_tokens, input_tokens)
        try:
            url = self._url(PATHS[request.endpoint])
            async with self._response(self._http.build_request("POST", url, json=body)) as response:
                cuts = request.is_open and "max_tokens" not in body
                async for event in self._read(request, response, counts, cuts=cuts):
                    yield event
        except _NOT_CONNECTED as error:
            raise NotConnected(type(error).__name__) from None
        except (httpx.HTTPError, httpx.InvalidURL, Nonsense) as error:
            raise _broken(request, error) from None
        if counts.ignored:
            logger.warning(
                "%d counts of the server were ignored", counts.ignored, extra={"execution": request.execution}
            )

    async def close(self) -> None:
        await self._http.aclose()

    def _url(self, path: str) -> str:
        return self.options.url.rstrip("/") + path

    async def _read(
        self, request: WorkOrder, response: httpx.Response, counts: Counts, *, cuts: bool
    ) -> AsyncGenerator[EngineEvent, None]:
        if not _is_success(response.status_code):
            body = await _beginning(response, _ERROR_BYTES_MAX)
            raise error_of_status(response.status_code, body, retry_after_s(response.headers))
        _check_encoding(response.headers)
        if request.endpoint is Endpoint.EMBEDDINGS:
            for event in embedding_events(await _whole(response, WHOLE_BYTES_MAX), counts):
                yield event
            return
        answer = self._answer(request, counts, cuts=cuts)
        async with aclosing(_events(response, _bytes_max(request, counts))) as stream:
            while not answer.is_cut and (sent := await _next(stream, answer)) is not None:
                for event in answer.feed(sent):
                    yield event
                if sent.is_done:
                    break
            for event in answer.end(is_framed=is_framed(response.headers)):
                yield event
            if answer.is_cut:
                return
            with suppress(httpx.HTTPError, Nonsense, TimeoutError):
                async with asyncio.timeout(_CLOSING_S):
                    await anext(stream, None)  # the end of the body, so that the connection can be used again

    def _answer(self, request: WorkOrder, counts: Counts, *, cuts: bool) -> ArrivingAnswer:
        normal = Normal(
            counts.choices,
            re.sub(r"[^A-Za-z0-9]", "", request.execution),
            offered_tools(request.body),
            self.options.check_choice,
            self.oddities,
        )
        one_prompt = counts.choices == request.choices
        return ArrivingAnswer(
            counts, normal, one_prompt=one_prompt, cuts=cuts, bytes_per_token=self.options.bytes_per_token
        )

    @asynccontextmanager
    async def _response(self, request: httpx.Request) -> AsyncIterator[httpx.Response]:
        response = await self._send_with_retry(request)
        try:
            yield response
        finally:
            await self._close(response)

    async def _send_with_retry(self, request: httpx.Request) -> httpx.Response:
        """Send the request, and once more if its connection ends before the head of the answer.

        A server may close an idle connection just when a request begins to use it. If the server has died, the second
        try finds no connection, and the gate gets the request back.
        """
        try:
            return await self._http.send(request, stream=True)
        except _BROKEN_OFF:
            return await self._http.send(request, stream=True)

    async def _close(self, response: httpx.Response) -> None:
        """Close the answer, even if the calling task is cancelled meanwhile: a cancelled close leaks a connection."""
        closing = asyncio.ensure_future(response.aclose())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.shield(closing)


def _is_success(status: int) -> bool:
    return 200 <= status <= 299


def _check_encoding(headers: Mapping[str, str]) -> None:
    """Raises Nonsense for a compressed body: the client asks for none, and a small one could fill the memory."""
    if headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
        raise Nonsense(
            "the server compresses its answers; headgate asks for none: configure it, or the proxy before it"
        )


def is_framed(headers: Mapping[str, str]) -> bool:
    """Return whether HTTP shows the end of the body, so that a broken connection is an error and not the end."""
    return "content-length" in headers or "chunked" in headers.get("transfer-encoding", "").lower()


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the server asks its client to wait; None if it does not say, or says no time.

    They are in `retry-after-ms`, or in `retry-after` as seconds or as a date. A date counts from the server's own
    `date`, because the clocks of two machines differ.
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return min(milliseconds / 1000, RETRY_AFTER_MAX_S)
    given = headers.get("retry-after", "")
    seconds = _number(given)
    if seconds is None:
        try:
            wait = parsedate_to_datetime(given) - parsedate_to_datetime(headers.get("date", ""))
        except (ValueError, TypeError, OverflowError):
            return None
        seconds = max(0.0, wait.total_seconds())
    return min(seconds, RETRY_AFTER_MAX_S)


async def _next(stream: AsyncGenerator[ServerEvent, None], answer: ArrivingAnswer) -> ServerEvent | None:
    """Return the next event; None at the end of the body. After the last choice only the usage is missing: a server
    that does not send it in time has ended too."""
    try:
        async with asyncio.timeout(_CLOSING_S if answer.is_complete else None):
            return await anext(stream, None)
    except (httpx.HTTPError, TimeoutError):
        if not answer.is_complete:
            raise
        return None


async def _events(response: httpx.Response, bytes_max: int) -> AsyncGenerator[ServerEvent, None]:
    """Yield the events of the body."""
    reader = BodyReader(bytes_max)
    async for piece in response.aiter_raw():
        for event in reader.feed(piece):
            yield event
    for event in reader.end():
        yield event


async def _whole(response: httpx.Response, bytes_max: int) -> bytes:
    """Return the body. Raises Nonsense for more than `bytes_max` bytes."""
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > bytes_max:
            raise Nonsense(f"a body has more than {bytes_max} bytes")
    return bytes(body)


async def _beginning(response: httpx.Response, bytes_max: int) -> bytes:
    """Return the body, cut off after about `bytes_max` bytes."""
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > bytes_max:
            break
    return bytes(body)


def _bytes_max(request: WorkOrder, counts: Counts) -> int:
    return _BODY_BYTES_MIN + _EVENT_BYTES_MAX * request.max_tokens * counts.choices


def _broken(request: WorkOrder, error: Exception) -> EngineError:
    """Return the error for an answer that cannot be used. The log has the reason, and nothing of the answer."""
    reason = str(error) if isinstance(error, Nonsense) else type(error).__name__
    logger.error("the server's answer cannot be used: %s", reason, extra={"execution": request.execution})
    return failed("its answer was broken off" if isinstance(error, httpx.HTTPError) else "its answer was malformed")


def _number(text: str) -> float | None:
    """Return the number that is not negative; None if the text is none."""
    return float(text) if re.fullmatch(r"\s*[0-9]{1,15}(\.[0-9]{0,9})?\s*", text, re.ASCII) else None
