"""The tenant client over lambda.invoke.

The settings that keep a call one call, whoever makes it: a read timeout above what a function may run, and one attempt
(an SDK that gives up earlier, or tries again by itself, pays again); the idempotency key covers what remains.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from headgate.client.answers import (
    Answer,
    BadRequest,
    HeadgateClientError,
    Outcome,
    Refused,
    Unavailable,
    Unreachable,
    answer_from,
    error_from,
    error_within,
    json_bytes,
    json_object,
    not_ours,
)
from headgate.client.calls import Patience, Prompt, body_of

if TYPE_CHECKING:
    from mypy_boto3_lambda import LambdaClient

LAMBDA_READ_TIMEOUT_S = 910.0
"""Above the 900 s that a function may run."""
CALLS_MAX = 32
"""Calls under way at once in one client."""
T = TypeVar("T")


class LambdaHeadgate:
    """Over lambda.invoke. `client`: boto3's, else one is made as AWS's variables say, with one attempt a call."""

    def __init__(
        self,
        api_key: str | None = None,
        *,
        model: str,
        client: LambdaClient | None = None,
        function: str = "headgate-invoke",
        result_function: str = "headgate-result",
        patience: Patience | None = None,
        new_id: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._model = model
        self._new_id = new_id
        self._patience = patience or Patience()
        self._function, self._result_function = function, result_function
        self._api_key = api_key or os.environ.get("HEADGATE_API_KEY", "")
        if not self._api_key:
            raise BadRequest("give api_key, or set HEADGATE_API_KEY")
        self._client = client or _lambda_client()

    def chat(self, prompt: Prompt, *, idempotency_key: str | None = None, **fields: Any) -> Answer:
        return self._ask(prompt, True, idempotency_key, fields)

    def complete(self, prompt: str, *, idempotency_key: str | None = None, **fields: Any) -> Answer:
        return self._ask(prompt, False, idempotency_key, fields)

    def later(self, prompt: Prompt, *, chat: bool = True, idempotency_key: str | None = None, **fields: Any) -> str:
        """Start it and return at once; `result` tells what became of the id that is returned."""
        key = idempotency_key or self._new_id()
        self._invoke(self._function, self._payload(prompt, chat, key, fields), event=True)
        return key

    def result(self, invocation_id: str) -> Outcome:
        told = self._invoke(self._result_function, {"api_key": self._api_key, "id": invocation_id})
        status = told.get("status")
        if not isinstance(status, str):
            raise _error_of(told)
        done = told.get("response")
        return Outcome(
            id=str(told.get("id", invocation_id)),
            status=status,
            answer=answer_from(done) if done else None,
            error=error_within(told) if told.get("error") else None,
        )

    def _ask(self, prompt: Prompt, chat: bool, key: str | None, fields: dict[str, Any]) -> Answer:
        payload = self._payload(prompt, chat, key or self._new_id(), fields)
        return answer_from(self._patience.ask(partial(self._asked, payload)))

    def _asked(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        told = self._invoke(self._function, payload)
        if "error" in told:
            raise _error_of(told)
        if told.get("status") == "queued":
            raise Unavailable(f"still queued; ask for the result of {told.get('id')}", code="queued")
        return told

    def _payload(self, prompt: Prompt, chat: bool, key: str, fields: dict[str, Any]) -> dict[str, Any]:
        model = str(fields.pop("model", None) or self._model)
        return {"api_key": self._api_key, "idempotency_key": key, **body_of(prompt, model, fields, chat=chat)}

    def _invoke(self, function: str, payload: Mapping[str, Any], *, event: bool = False) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            reply = self._client.invoke(
                FunctionName=function,
                InvocationType="Event" if event else "RequestResponse",
                Payload=json_bytes(payload),
            )
            told = json_object(reply["Payload"].read())
        except ClientError as error:
            raise _refused_by_aws(str(error), error.response["Error"]["Code"]) from None
        except BotoCoreError as error:
            raise Unreachable(str(error)) from None
        if "FunctionError" in reply:
            raise Unavailable(str(told.get("errorMessage", "the function failed")), code=str(told.get("errorType", "")))
        return told


class AsyncLambdaHeadgate:
    """The same, for asyncio: boto3's calls in threads. A call that is cancelled runs on by itself; its answer waits
    under its idempotency key."""

    def __init__(self, api_key: str | None = None, **options: Any) -> None:
        self._calls = LambdaHeadgate(api_key, **options)
        self._threads = ThreadPoolExecutor(CALLS_MAX, "headgate-lambda")

    async def chat(self, prompt: Prompt, **fields: Any) -> Answer:
        return await self._run(partial(self._calls.chat, prompt, **fields))

    async def complete(self, prompt: str, **fields: Any) -> Answer:
        return await self._run(partial(self._calls.complete, prompt, **fields))

    async def later(self, prompt: Prompt, **fields: Any) -> str:
        return await self._run(partial(self._calls.later, prompt, **fields))

    async def result(self, invocation_id: str) -> Outcome:
        return await self._run(partial(self._calls.result, invocation_id))

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _error_of(told: Mapping[str, Any]) -> HeadgateClientError:
    """A user's error as the functions answer it: OpenAI's error object and a status."""
    status = told.get("status")
    return error_from(status, told, {}) if isinstance(status, int) and "error" in told else not_ours()


def _refused_by_aws(message: str, code: str) -> HeadgateClientError:
    """Lambda itself refused. Its throttling says nothing of when to come back, so nothing asks again by itself."""
    if code == "TooManyRequestsException":
        return Refused(message, code=code, status=429)
    return Unavailable(message, code=code)


def _lambda_client() -> LambdaClient:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    config = Config(
        read_timeout=LAMBDA_READ_TIMEOUT_S,
        connect_timeout=10,
        retries={"total_max_attempts": 1},
        max_pool_connections=CALLS_MAX,
        tcp_keepalive=True,  # a call may be silent for longer than what lies on the way keeps a silent connection
    )
    try:
        return boto3.client("lambda", config=config)
    except (BotoCoreError, ValueError) as error:  # ValueError: an endpoint that is no URL
        raise BadRequest(f"AWS's variables do not say where to call: {error}") from None
