"""The tenant client over lambda.invoke: the client over HTTP, on a transport that invokes Lambda functions.

Two settings keep one call one invocation: a read timeout above what a function may run, and one attempt (an SDK that
gives up earlier, or tries again by itself, pays again). The idempotency key covers the rest.
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import boto3
import httpx
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from headgate.client.answers import HeadgateClientError, Outcome, answer_from, json_object, unknown_answer
from headgate.client.over_http import AsyncHeadgate, Headgate, Prompt

if TYPE_CHECKING:
    from mypy_boto3_lambda import LambdaClient

LAMBDA_READ_TIMEOUT_S = 910.0
"""Above the 900 s that a function may run."""
_CALLS_MAX = 32
"""Calls at the same time in one client."""
BASE_URL = "http://lambda.invoke"
"""Never resolved: the transport sends no HTTP."""
_RESULT_PATH = "/result"
_FUNCTION, _RESULT_FUNCTION = "headgate-invoke:live", "headgate-result:live"
_EVENT = {"invocation-type": "Event"}
"""Header of a request that is only started."""


class LambdaTransport(httpx.BaseTransport):
    """Sends the requests of an openai client to `function`, and those for the path /result to `result_function`.

    A payload with `error` and an HTTP `status` is answered with that status, a fault of the function with 502,
    throttling by Lambda itself with 429 without Retry-After.
    """

    def __init__(self, client: LambdaClient | None, function: str, result_function: str) -> None:
        self.client = client or lambda_client()
        self._function, self._result_function = function, result_function

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Raises httpx.ConnectError if Lambda cannot be reached."""
        if request.method != "POST":
            return _error(404, "lambda.invoke lists no models: name the model", "unknown_url")
        is_result = request.url.path == _RESULT_PATH
        payload = {"api_key": request.headers["authorization"].removeprefix("Bearer "), **json.loads(request.read())}
        if not is_result:
            payload["idempotency_key"] = request.headers["idempotency-key"]
        try:
            reply = self.client.invoke(
                FunctionName=self._result_function if is_result else self._function,
                InvocationType="Event" if "invocation-type" in request.headers else "RequestResponse",
                Payload=json.dumps(payload).encode(),
            )
            content = reply["Payload"].read()
        except ClientError as error:
            code = error.response["Error"]["Code"]
            return _error(429 if code == "TooManyRequestsException" else 502, str(error), code)
        except BotoCoreError as error:
            raise httpx.ConnectError(str(error)) from None
        return _response(content, is_fault="FunctionError" in reply, is_result=is_result)


class AsyncLambdaTransport(httpx.AsyncBaseTransport):
    """LambdaTransport in threads, for asyncio. A cancelled call runs on; its idempotency key finds its answer."""

    def __init__(self, client: LambdaClient | None, function: str, result_function: str) -> None:
        self._transport = LambdaTransport(client, function, result_function)
        self._threads = ThreadPoolExecutor(_CALLS_MAX, "headgate-lambda")

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._transport.handle_request, request)

    async def aclose(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class LambdaHeadgate(Headgate):
    """Calls the service over lambda.invoke, which streams nothing and lists no models.

    `client`: boto3's, else one from AWS's variables. `settings`: model (required), patience and new_id of Headgate.
    """

    def __init__(
        self,
        api_key: str | None = None,
        *,
        client: LambdaClient | None = None,
        function: str = _FUNCTION,
        result_function: str = _RESULT_FUNCTION,
        **settings: Any,
    ) -> None:
        transport = LambdaTransport(client, function, result_function)
        super().__init__(BASE_URL, api_key, http_client=httpx.Client(transport=transport), **settings)

    def later(self, prompt: Prompt, *, chat: bool = True, idempotency_key: str | None = None, **fields: Any) -> str:
        """Start an invocation and return its id at once; `result` gives its outcome."""
        key = idempotency_key or self._new_id()
        request = self._request(prompt, self._take_model(fields), key, fields, chat=chat, headers=_EVENT)
        self._create(chat)(**request)
        return key

    def result(self, invocation_id: str) -> Outcome:
        """Return what became of an invocation so far."""
        return _outcome(self.openai.post(_RESULT_PATH, body={"id": invocation_id}, cast_to=httpx.Response))


class AsyncLambdaHeadgate(AsyncHeadgate):
    """Calls the service over lambda.invoke, for asyncio. Options as for LambdaHeadgate."""

    def __init__(
        self,
        api_key: str | None = None,
        *,
        client: LambdaClient | None = None,
        function: str = _FUNCTION,
        result_function: str = _RESULT_FUNCTION,
        **settings: Any,
    ) -> None:
        transport = AsyncLambdaTransport(client, function, result_function)
        super().__init__(BASE_URL, api_key, http_client=httpx.AsyncClient(transport=transport), **settings)

    async def later(
        self, prompt: Prompt, *, chat: bool = True, idempotency_key: str | None = None, **fields: Any
    ) -> str:
        """Start an invocation and return its id at once; `result` gives its outcome."""
        key = idempotency_key or self._new_id()
        request = self._request(prompt, await self._take_model(fields), key, fields, chat=chat, headers=_EVENT)
        await self._create(chat)(**request)
        return key

    async def result(self, invocation_id: str) -> Outcome:
        """Return what became of an invocation so far."""
        return _outcome(await self.openai.post(_RESULT_PATH, body={"id": invocation_id}, cast_to=httpx.Response))


def lambda_client() -> LambdaClient:
    """Make a boto3 client from AWS's variables. Raises HeadgateClientError if they name no region or no valid URL."""
    config = Config(
        read_timeout=LAMBDA_READ_TIMEOUT_S,
        connect_timeout=10,
        retries={"total_max_attempts": 1},
        max_pool_connections=_CALLS_MAX,
        tcp_keepalive=True,  # a call may be silent for longer than a load balancer or NAT keeps a silent connection
    )
    try:
        return boto3.client("lambda", config=config)
    except (BotoCoreError, ValueError) as error:  # ValueError: the endpoint is not a URL
        message = f"cannot reach Lambda: {error}; check AWS_DEFAULT_REGION and AWS_ENDPOINT_URL"
        raise HeadgateClientError(message) from None


def _response(content: bytes, *, is_fault: bool, is_result: bool) -> httpx.Response:
    body = json_object(content)
    status = body.get("status")
    if is_fault:
        return _error(502, str(body.get("errorMessage", "the function failed")), str(body.get("errorType", "")))
    if "error" in body and isinstance(status, int):
        after_s = body.get("retry_after_s")
        return httpx.Response(status, content=content, headers={} if after_s is None else {"retry-after": str(after_s)})
    if status in ("queued", "running") and not is_result:
        return _error(504, f"still {status}; ask for the result of {body.get('id')}", str(status))
    return httpx.Response(200, content=content)


def _error(status: int, message: str, code: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": message, "code": code}})


def _outcome(reply: httpx.Response) -> Outcome:
    """Raises HeadgateClientError for a body that is not the result function's."""
    body = json_object(reply.content)
    answer, error = body.get("response"), body.get("error")
    try:
        return Outcome(
            id=body["id"],
            status=body["status"],
            answer=answer_from(answer, {}) if answer else None,
            error=HeadgateClientError(error["message"], code=error.get("code") or "") if error else None,
        )
    except (LookupError, TypeError):
        raise unknown_answer() from None
