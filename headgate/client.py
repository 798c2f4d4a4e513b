"""The tenant client: one line a call, over HTTP or over lambda.invoke, sync or async.

    Headgate(base_url="http://…/v1", api_key="hg-…").chat("hello").text
    await AsyncHeadgate(…).chat("hello")
    LambdaHeadgate(api_key="hg-…").chat("hello").text

Errors form one tree (client_answers.py). Every call carries an idempotency key (yours, or one made here), so a retry of
the same call is the same invocation: one charge, the same answer. Nothing is retried here: a read timeout longer than
the service's own deadline (300 s) and one attempt are the settings that keep a call one call; give `idempotency_key`
and call again to continue after a cut.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import httpx

from headgate.client_answers import (
    Answer,
    BadRequest,
    HeadgateClientError,
    Outcome,
    Unavailable,
    Unreachable,
    answer_from,
    checked,
    error_from,
    json_object,
    only_model,
    piece_of,
)

if TYPE_CHECKING:
    from mypy_boto3_lambda import LambdaClient

__all__ = ["Answer", "AsyncHeadgate", "Headgate", "HeadgateClientError", "LambdaHeadgate", "Outcome"]

READ_TIMEOUT_S = 310.0
LAMBDA_READ_TIMEOUT_S = 910.0
"""Above the 900 s that a function may run: an SDK that gives up earlier asks again, and pays again."""
Prompt = str | Sequence[Mapping[str, str]]


class _Calls:
    """What all three clients share: bodies out, answers and errors in."""

    def __init__(self, model: str | None, new_id: Callable[[], str]) -> None:
        self._model = model
        self._new_id = new_id

    def _body(self, prompt: Prompt, *, chat: bool, model: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        if chat:
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
            asked: dict[str, Any] = {"messages": messages}
        else:
            asked = {"prompt": prompt}
        return {"model": model, **asked, **{name: value for name, value in fields.items() if value is not None}}

    def _key(self, idempotency_key: str | None) -> str:
        return idempotency_key or self._new_id()


class _Http(_Calls):
    def __init__(self, base_url: str | None, api_key: str | None, model: str | None, new_id: Callable[[], str]) -> None:
        super().__init__(model, new_id)
        self._base_url = (base_url or os.environ.get("HEADGATE_BASE_URL", "")).rstrip("/")
        key = api_key or os.environ.get("HEADGATE_API_KEY", "")
        if not self._base_url or not key:
            raise BadRequest("give base_url and api_key, or set HEADGATE_BASE_URL and HEADGATE_API_KEY")
        self._options: dict[str, Any] = {
            "headers": {"authorization": f"Bearer {key}"},
            "timeout": httpx.Timeout(READ_TIMEOUT_S, connect=10.0),
        }

    def _request(self, body: Mapping[str, Any], idempotency_key: str | None) -> dict[str, Any]:
        path = "chat/completions" if "messages" in body else "completions"
        headers = {"idempotency-key": self._key(idempotency_key)}
        return {"method": "POST", "url": f"{self._base_url}/{path}", "json": body, "headers": headers}


class Headgate(_Http):
    """Over HTTP. `model` None takes the only one that is offered. Raises HeadgateClientError."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        model: str | None = None,
        new_id: Callable[[], str] = lambda: secrets.token_hex(16),
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(base_url, api_key, model, new_id)
        self._http = httpx.Client(**self._options, transport=transport)

    def chat(self, prompt: Prompt, *, idempotency_key: str | None = None, **fields: Any) -> Answer:
        """`prompt`: the user's words, or messages. `fields`: max_tokens, temperature, seed, stop, model …"""
        return self._ask(prompt, True, idempotency_key, fields)

    def complete(self, prompt: str, *, idempotency_key: str | None = None, **fields: Any) -> Answer:
        return self._ask(prompt, False, idempotency_key, fields)

    def stream(self, prompt: Prompt, *, chat: bool = True, **fields: Any) -> Iterator[str]:
        """Pieces of text as they come. Closing the iterator aborts the work."""
        body = {**self._body(prompt, chat=chat, model=self._named(fields), fields=fields), "stream": True}
        with _reached(), self._http.stream(**self._request(body, None)) as reply:
            if reply.status_code != 200:
                raise error_from(reply.status_code, json_object(reply.read()), reply.headers)
            for line in reply.iter_lines():
                piece = piece_of(line)
                if piece:
                    yield piece

    def models(self) -> list[str]:
        with _reached():
            reply = self._http.get(f"{self._base_url}/models")
        return [model["id"] for model in checked(reply)["data"]]

    def close(self) -> None:
        self._http.close()

    def _ask(self, prompt: Prompt, chat: bool, idempotency_key: str | None, fields: dict[str, Any]) -> Answer:
        body = self._body(prompt, chat=chat, model=self._named(fields), fields=fields)
        with _reached():
            reply = self._http.request(**self._request(body, idempotency_key))
        return answer_from(checked(reply))

    def _named(self, fields: dict[str, Any]) -> str:
        self._model = fields.pop("model", None) or self._model or only_model(self.models())
        return self._model


class AsyncHeadgate(_Http):
    """The same, for asyncio."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        model: str | None = None,
        new_id: Callable[[], str] = lambda: secrets.token_hex(16),
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(base_url, api_key, model, new_id)
        self._http = httpx.AsyncClient(**self._options, transport=transport)

    async def chat(self, prompt: Prompt, *, idempotency_key: str | None = None, **fields: Any) -> Answer:
        return await self._ask(prompt, True, idempotency_key, fields)

    async def complete(self, prompt: str, *, idempotency_key: str | None = None, **fields: Any) -> Answer:
        return await self._ask(prompt, False, idempotency_key, fields)

    async def stream(self, prompt: Prompt, *, chat: bool = True, **fields: Any) -> AsyncIterator[str]:
        """Pieces of text as they come. Closing the iterator aborts the work."""
        body = {**self._body(prompt, chat=chat, model=await self._named(fields), fields=fields), "stream": True}
        async with _reached_async(), self._http.stream(**self._request(body, None)) as reply:
            if reply.status_code != 200:
                raise error_from(reply.status_code, json_object(await reply.aread()), reply.headers)
            async for line in reply.aiter_lines():
                piece = piece_of(line)
                if piece:
                    yield piece

    async def models(self) -> list[str]:
        async with _reached_async():
            reply = await self._http.get(f"{self._base_url}/models")
        return [model["id"] for model in checked(reply)["data"]]

    async def close(self) -> None:
        await self._http.aclose()

    async def _ask(self, prompt: Prompt, chat: bool, idempotency_key: str | None, fields: dict[str, Any]) -> Answer:
        body = self._body(prompt, chat=chat, model=await self._named(fields), fields=fields)
        async with _reached_async():
            reply = await self._http.request(**self._request(body, idempotency_key))
        return answer_from(checked(reply))

    async def _named(self, fields: dict[str, Any]) -> str:
        self._model = fields.pop("model", None) or self._model or only_model(await self.models())
        return self._model


class LambdaHeadgate(_Calls):
    """Over lambda.invoke. `client`: boto3's, else one is made as AWS's variables say, with one attempt a call."""

    def __init__(
        self,
        api_key: str | None = None,
        *,
        model: str,
        client: LambdaClient | None = None,
        new_id: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        super().__init__(model, new_id)
        self._api_key = api_key or os.environ.get("HEADGATE_API_KEY", "")
        if not self._api_key:
            raise BadRequest("give api_key, or set HEADGATE_API_KEY")
        self._client = client or _lambda_client()

    def chat(self, prompt: Prompt, *, idempotency_key: str | None = None, **fields: Any) -> Answer:
        return answer_from(self._asked(prompt, True, idempotency_key, fields))

    def complete(self, prompt: str, *, idempotency_key: str | None = None, **fields: Any) -> Answer:
        return answer_from(self._asked(prompt, False, idempotency_key, fields))

    def later(self, prompt: Prompt, *, chat: bool = True, idempotency_key: str | None = None, **fields: Any) -> str:
        """Start it and return at once; `result` tells what became of the id that is returned."""
        key = self._key(idempotency_key)
        self._invoke("headgate-invoke", self._payload(prompt, chat, key, fields), event=True)
        return key

    def result(self, invocation_id: str) -> Outcome:
        told = self._invoke("headgate-result", {"api_key": self._api_key, "id": invocation_id})
        if "status" not in told or not isinstance(told["status"], str):
            raise error_from(int(told.get("status", 500)), told, {})
        done, failed = told.get("response"), told.get("error")
        return Outcome(
            id=told["id"],
            status=told["status"],
            answer=answer_from(done) if done else None,
            error=error_from(500, {"error": failed}, {}) if failed else None,
        )

    def _asked(self, prompt: Prompt, chat: bool, key: str | None, fields: dict[str, Any]) -> dict[str, Any]:
        told = self._invoke("headgate-invoke", self._payload(prompt, chat, self._key(key), fields))
        if "error" in told:
            raise error_from(int(told.get("status", 500)), told, {})
        if told.get("status") == "queued":
            raise Unavailable(f"still queued; ask for the result of {told['id']}", code="queued")
        return told

    def _payload(self, prompt: Prompt, chat: bool, key: str, fields: dict[str, Any]) -> dict[str, Any]:
        model = str(fields.pop("model", None) or self._model)
        body = self._body(prompt, chat=chat, model=model, fields=fields)
        return {"api_key": self._api_key, "idempotency_key": key, **body}

    def _invoke(self, function: str, payload: Mapping[str, Any], *, event: bool = False) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            reply = self._client.invoke(
                FunctionName=function,
                InvocationType="Event" if event else "RequestResponse",
                Payload=json.dumps(payload).encode(),
            )
        except ClientError as error:
            raise Unavailable(str(error), code=error.response["Error"]["Code"]) from None
        except BotoCoreError as error:
            raise Unreachable(str(error)) from None
        told = json_object(reply["Payload"].read())
        if "FunctionError" in reply:
            raise Unavailable(str(told.get("errorMessage", "the function failed")), code=str(told.get("errorType", "")))
        return told


@contextmanager
def _reached() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError as error:
        raise Unreachable(f"the service cannot be reached: {error or type(error).__name__}") from None


@asynccontextmanager
async def _reached_async() -> AsyncIterator[None]:
    with _reached():
        yield


def _lambda_client() -> LambdaClient:
    import boto3
    from botocore.config import Config

    config = Config(read_timeout=LAMBDA_READ_TIMEOUT_S, retries={"total_max_attempts": 1})
    return boto3.client("lambda", config=config)
