"""The tenant client: one line a call, over HTTP or over lambda.invoke, sync or async.

    Headgate(base_url="http://…/v1", api_key="hg-…").chat("hello").text
    await AsyncHeadgate(…).chat("hello")
    LambdaHeadgate(api_key="hg-…", model="…").chat("hello").text

Errors form one tree (client/answers.py). Every call carries an idempotency key (yours, or one made here), so a retry of
the same call is the same invocation: one charge, the same answer. Nothing is asked again unless `patience` allows it
(client/calls.py): a read timeout longer than the service's own deadline (300 s) and one attempt are the settings that
keep a call one call; give `idempotency_key` and call again to continue after a cut.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import httpx

from headgate.client.answers import (
    Answer,
    BadRequest,
    HeadgateClientError,
    Outcome,
    Unreachable,
    answer_from,
    broken_off,
    checked,
    error_from,
    json_bytes,
    json_object,
    models_from,
    only_model,
    piece_of,
)
from headgate.client.calls import Patience, Prompt, as_header, body_of
from headgate.client.over_lambda import AsyncLambdaHeadgate, LambdaHeadgate

__all__ = [
    "Answer",
    "AsyncHeadgate",
    "AsyncLambdaHeadgate",
    "Headgate",
    "HeadgateClientError",
    "LambdaHeadgate",
    "Outcome",
    "Patience",
]

READ_TIMEOUT_S = 310.0


class _Http:
    """What both share: where to, as whom, and the requests."""

    def __init__(
        self, base_url: str | None, api_key: str | None, model: str | None, patience: Patience | None,
        new_id: Callable[[], str],
    ) -> None:  # fmt: skip
        self._model = model
        self._patience = patience or Patience()
        self._new_id = new_id
        self._base_url = (base_url or os.environ.get("HEADGATE_BASE_URL", "")).rstrip("/")
        key = api_key or os.environ.get("HEADGATE_API_KEY", "")
        if not self._base_url or not key:
            raise BadRequest("give base_url and api_key, or set HEADGATE_BASE_URL and HEADGATE_API_KEY")
        self._options: dict[str, Any] = {
            "headers": {"authorization": f"Bearer {as_header(key, 'api_key')}", "content-type": "application/json"},
            "timeout": httpx.Timeout(READ_TIMEOUT_S, connect=10.0),
        }

    def _request(self, body: Mapping[str, Any], idempotency_key: str | None) -> dict[str, Any]:
        path = "chat/completions" if "messages" in body else "completions"
        headers = {"idempotency-key": as_header(idempotency_key or self._new_id(), "idempotency_key")}
        return {"method": "POST", "url": f"{self._base_url}/{path}", "content": json_bytes(body), "headers": headers}


class Headgate(_Http):
    """Over HTTP. `model` None takes the only one that is offered. Raises HeadgateClientError."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        model: str | None = None,
        patience: Patience | None = None,
        new_id: Callable[[], str] = lambda: secrets.token_hex(16),
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(base_url, api_key, model, patience, new_id)
        self._http = httpx.Client(**self._options, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def chat(self, prompt: Prompt, *, idempotency_key: str | None = None, **fields: Any) -> Answer:
        """`prompt`: the user's words, or messages. `fields`: max_tokens, temperature, seed, stop, model …"""
        return self._ask(prompt, True, idempotency_key, fields)

    def complete(self, prompt: str, *, idempotency_key: str | None = None, **fields: Any) -> Answer:
        return self._ask(prompt, False, idempotency_key, fields)

    def stream(
        self, prompt: Prompt, *, chat: bool = True, idempotency_key: str | None = None, **fields: Any
    ) -> Iterator[str]:
        """Pieces of text as they come. Closing the iterator aborts the work."""
        body = {**body_of(prompt, self._named(fields), fields, chat=chat), "stream": True}
        with _reached(), self._http.stream(**self._request(body, idempotency_key)) as reply:
            if reply.status_code != 200:
                raise error_from(reply.status_code, json_object(reply.read()), reply.headers)
            ended = False
            for line in reply.iter_lines():  # to the very end, so that the connection serves the next call
                piece = piece_of(line)
                ended = ended or piece is None
                if piece:
                    yield piece
            if not ended:
                raise broken_off()

    def models(self) -> list[str]:
        with _reached():
            reply = self._http.get(f"{self._base_url}/models")
        return models_from(checked(reply))

    def close(self) -> None:
        self._http.close()

    def _ask(self, prompt: Prompt, chat: bool, idempotency_key: str | None, fields: dict[str, Any]) -> Answer:
        body = body_of(prompt, self._named(fields), fields, chat=chat)
        return self._patience.ask(partial(self._asked, self._request(body, idempotency_key)))

    def _asked(self, request: Mapping[str, Any]) -> Answer:
        with _reached():
            reply = self._http.request(**request)
        return answer_from(checked(reply))

    def _named(self, fields: dict[str, Any]) -> str:
        """The model of this call; the only one that is offered is asked for once."""
        model = fields.pop("model", None)
        if model:
            return str(model)
        self._model = self._model or only_model(self.models())
        return self._model


class AsyncHeadgate(_Http):
    """The same, for asyncio."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        model: str | None = None,
        patience: Patience | None = None,
        new_id: Callable[[], str] = lambda: secrets.token_hex(16),
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(base_url, api_key, model, patience, new_id)
        self._http = httpx.AsyncClient(**self._options, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def chat(self, prompt: Prompt, *, idempotency_key: str | None = None, **fields: Any) -> Answer:
        return await self._ask(prompt, True, idempotency_key, fields)

    async def complete(self, prompt: str, *, idempotency_key: str | None = None, **fields: Any) -> Answer:
        return await self._ask(prompt, False, idempotency_key, fields)

    async def stream(
        self, prompt: Prompt, *, chat: bool = True, idempotency_key: str | None = None, **fields: Any
    ) -> AsyncIterator[str]:
        """Pieces of text as they come. Closing the iterator aborts the work."""
        body = {**body_of(prompt, await self._named(fields), fields, chat=chat), "stream": True}
        with _reached():
            async with self._http.stream(**self._request(body, idempotency_key)) as reply:
                if reply.status_code != 200:
                    raise error_from(reply.status_code, json_object(await reply.aread()), reply.headers)
                ended = False
                async for line in reply.aiter_lines():
                    piece = piece_of(line)
                    ended = ended or piece is None
                    if piece:
                        yield piece
                if not ended:
                    raise broken_off()

    async def models(self) -> list[str]:
        with _reached():
            reply = await self._http.get(f"{self._base_url}/models")
        return models_from(checked(reply))

    async def close(self) -> None:
        await self._http.aclose()

    async def _ask(self, prompt: Prompt, chat: bool, idempotency_key: str | None, fields: dict[str, Any]) -> Answer:
        body = body_of(prompt, await self._named(fields), fields, chat=chat)
        request, waited_s = self._request(body, idempotency_key), 0.0
        while True:
            try:
                return await self._asked(request)
            except HeadgateClientError as error:
                pause_s = self._patience.pause_s(error, waited_s)
                if pause_s is None:
                    raise
            await self._patience.sleep_async(pause_s)
            waited_s += pause_s

    async def _asked(self, request: Mapping[str, Any]) -> Answer:
        with _reached():
            reply = await self._http.request(**request)
        return answer_from(checked(reply))

    async def _named(self, fields: dict[str, Any]) -> str:
        """The model of this call; the only one that is offered is asked for once."""
        model = fields.pop("model", None)
        if model:
            return str(model)
        self._model = self._model or only_model(await self.models())
        return self._model


@contextmanager
def _reached() -> Iterator[None]:
    """Around an exchange: what the transport raises becomes Unreachable, an address that is none BadRequest."""
    try:
        yield
    except httpx.HTTPError as error:
        raise Unreachable(f"the service cannot be reached: {error or type(error).__name__}") from None
    except httpx.InvalidURL as error:
        raise BadRequest(f"base_url is no URL: {error}", param="base_url") from None
