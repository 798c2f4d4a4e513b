"""The tenant client over HTTP: the official openai client without its own retries, which ignore the caller's bound.

A call is tried again only after a refusal that says when, and within a bound (Patience).
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar
from urllib.parse import urlsplit

import openai

from headgate.client.answers import (
    Answer,
    HeadgateClientError,
    answer_from,
    check_whole,
    json_object,
    models_from,
    only_model,
    piece_of,
)

_PAUSE_MIN_S = 0.1
_JITTER = 0.25
"""A pause is up to a quarter longer than Retry-After, so that callers refused together do not come back together."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """How many seconds a client may pause in total, over all tries of one call.

    A client pauses and tries again after a 429 or 503 that carries Retry-After. 0, the default: it never does.
    Streams are not retried.
    """

    within_s: float = 0.0
    sleep: Callable[[float], None] = time.sleep
    sleep_async: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = lambda: secrets.randbits(16) / 2**16
    """Returns a random number from 0 to 1."""

    def ask(self, once: Callable[[], T]) -> T:
        """Call `once` until it answers or the patience ends, then raise its error."""
        waited_s = 0.0
        while True:
            try:
                return once()
            except openai.APIStatusError as error:
                pause_s = self._pause_s(error, waited_s)
            self.sleep(pause_s)
            waited_s += pause_s

    async def ask_async(self, once: Callable[[], Awaitable[T]]) -> T:
        """Do the same for asyncio."""
        waited_s = 0.0
        while True:
            try:
                return await once()
            except openai.APIStatusError as error:
                pause_s = self._pause_s(error, waited_s)
            await self.sleep_async(pause_s)
            waited_s += pause_s

    def _pause_s(self, error: openai.APIStatusError, waited_s: float) -> float:
        """Seconds until the next try. Raises the error if there is none."""
        after_s = retry_after_s(error)
        if error.status_code not in (429, 503) or after_s is None:
            raise error
        pause_s = max(after_s, _PAUSE_MIN_S) * (1 + _JITTER * self.jitter())
        if waited_s + pause_s > self.within_s:
            raise error
        return pause_s


def retry_after_s(error: openai.APIStatusError) -> float | None:
    """Seconds after which to try again; None if the answer names none, or a date, which a proxy may send."""
    try:
        seconds = float(error.response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None


_READ_TIMEOUT_S = 310.0
"""Above the service's deadline of 300 s: a client that gives up earlier pays for an answer that it does not read."""
_CONNECT_TIMEOUT_S = 10.0
Prompt = str | Sequence[Mapping[str, Any]]
"""The user's text, or messages. The message of an answer (`answer.raw["choices"][0]["message"]`) can be one of them."""
Reply = TypeVar("Reply")


class Calls(Generic[Reply]):
    """Settings and requests of both clients. `Reply`: Answer, or a coroutine of it.

    `base_url`, `api_key`: default HEADGATE_BASE_URL, HEADGATE_API_KEY. `model`: default the only model of the service.
    `options`: more of openai's own, such as `http_client`. Raises HeadgateClientError for wrong settings.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        model: str | None = None,
        patience: Patience | None = None,
        new_id: Callable[[], str] = lambda: secrets.token_hex(16),
        **options: Any,
    ) -> None:
        url, key = base_url or os.environ.get("HEADGATE_BASE_URL"), api_key or os.environ.get("HEADGATE_API_KEY")
        if not url:
            raise HeadgateClientError("the address of the service is missing: give base_url, or set HEADGATE_BASE_URL")
        if not key:
            raise HeadgateClientError("the API key is missing: give api_key, or set HEADGATE_API_KEY")
        self._model = model
        self._patience = patience or Patience()
        self._new_id = new_id
        timeout = openai.Timeout(_READ_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
        key = _header(key, "api_key")
        self.openai = self._make(base_url=_url(url), api_key=key, max_retries=0, timeout=timeout, **options)
        """The official client, for everything that this class has no method for."""

    def chat(self, prompt: Prompt, *, idempotency_key: str | None = None, **fields: Any) -> Reply:
        """Answer a text or messages. `fields`: max_tokens, temperature, seed, stop, model and more of OpenAI's."""
        return self._call(prompt, idempotency_key, fields, chat=True)

    def complete(self, prompt: str, *, idempotency_key: str | None = None, **fields: Any) -> Reply:
        """Continue a text. `fields` as for chat."""
        return self._call(prompt, idempotency_key, fields, chat=False)

    def _make(self, **options: Any) -> Any:
        raise NotImplementedError

    def _call(self, prompt: Prompt, key: str | None, fields: dict[str, Any], *, chat: bool) -> Reply:
        raise NotImplementedError

    def _create(self, chat: bool) -> Any:
        return (self.openai.chat.completions if chat else self.openai.completions).with_raw_response.create

    def _request(
        self,
        prompt: Prompt,
        model: str,
        key: str | None,
        fields: Mapping[str, Any],
        *,
        chat: bool,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the arguments of openai's `create`. Fields that are None are left out. Raises HeadgateClientError."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        request = {
            "model": model,
            **({"messages": messages} if chat else {"prompt": prompt}),
            "extra_body": {name: value for name, value in fields.items() if value is not None},
        }
        try:
            json.dumps(request, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise HeadgateClientError(f"the request cannot be written as JSON: {error}") from None
        key = _header(key or self._new_id(), "idempotency_key")
        return {**request, "extra_headers": {**(headers or {}), "Idempotency-Key": key}}


class Headgate(Calls[Answer]):
    """Calls the service over HTTP."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stream(
        self, prompt: Prompt, *, chat: bool = True, idempotency_key: str | None = None, **fields: Any
    ) -> Iterator[str]:
        """Yield pieces of text as they arrive. Closing the iterator aborts the request."""
        request = self._request(prompt, self._take_model(fields), idempotency_key, fields, chat=chat)
        is_whole = False
        with self._create(chat)(**request, stream=True).parse() as chunks:
            for chunk in chunks:
                piece, is_last = piece_of(chunk)
                is_whole = is_whole or is_last
                if piece:
                    yield piece
        check_whole(is_whole)

    def models(self) -> list[str]:
        return models_from(json_object(self.openai.models.with_raw_response.list().content))

    def close(self) -> None:
        self.openai.close()

    def _make(self, **options: Any) -> Any:
        return openai.OpenAI(**options)

    def _call(self, prompt: Prompt, key: str | None, fields: dict[str, Any], *, chat: bool) -> Answer:
        request = self._request(prompt, self._take_model(fields), key, fields, chat=chat)
        reply = self._patience.ask(lambda: self._create(chat)(**request))
        return answer_from(json_object(reply.content), reply.headers)

    def _take_model(self, fields: dict[str, Any]) -> str:
        """Take the call's model out of its fields, else the client's. The service is asked at most once."""
        model = fields.pop("model", None) or self._model
        if not model:
            model = self._model = only_model(self.models())
        return str(model)


class AsyncHeadgate(Calls[Coroutine[Any, Any, Answer]]):
    """Calls the service over HTTP, for asyncio."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def stream(
        self, prompt: Prompt, *, chat: bool = True, idempotency_key: str | None = None, **fields: Any
    ) -> AsyncIterator[str]:
        """Yield pieces of text as they arrive. Closing the iterator aborts the request."""
        request = self._request(prompt, await self._take_model(fields), idempotency_key, fields, chat=chat)
        is_whole = False
        async with (await self._create(chat)(**request, stream=True)).parse() as chunks:
            async for chunk in chunks:
                piece, is_last = piece_of(chunk)
                is_whole = is_whole or is_last
                if piece:
                    yield piece
        check_whole(is_whole)

    async def models(self) -> list[str]:
        return models_from(json_object((await self.openai.models.with_raw_response.list()).content))

    async def close(self) -> None:
        await self.openai.close()

    def _make(self, **options: Any) -> Any:
        return openai.AsyncOpenAI(**options)

    async def _call(self, prompt: Prompt, key: str | None, fields: dict[str, Any], *, chat: bool) -> Answer:
        request = self._request(prompt, await self._take_model(fields), key, fields, chat=chat)
        reply = await self._patience.ask_async(lambda: self._create(chat)(**request))
        return answer_from(json_object(reply.content), reply.headers)

    async def _take_model(self, fields: dict[str, Any]) -> str:
        """Take the call's model out of its fields, else the client's. The service is asked at most once."""
        model = fields.pop("model", None) or self._model
        if not model:
            model = self._model = only_model(await self.models())
        return str(model)


def _url(base_url: str) -> str:
    """Return the URL. Raises HeadgateClientError if it is none."""
    try:
        parts = urlsplit(base_url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return base_url
    except ValueError:  # the port is no number
        pass
    raise HeadgateClientError(f"base_url: {base_url!r} is no URL such as http://127.0.0.1:8080/v1", param="base_url")


def _header(value: str, name: str) -> str:
    """Return the value. Raises HeadgateClientError if an HTTP header cannot carry it."""
    if not (value.isascii() and value.isprintable()):
        raise HeadgateClientError(f"{name} has characters that an HTTP header cannot carry", param=name)
    return value
