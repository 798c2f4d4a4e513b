"""The local AWS in the caller's event loop: its one endpoint, the Lambda functions, queue pollers and schedules.

aws = LocalAws(children, environment, moto_url=...)
url = await aws.start()    # the value for AWS_ENDPOINT_URL
...
await aws.stop()           # the caller stops the children

One endpoint serves all AWS services, so an unmodified SDK needs no setting but AWS_ENDPOINT_URL. The credential scope
of a request's signature (Signature Version 4) names its service. Requests for `lambda` are answered here, by real
`awslambdaric` processes; all others are forwarded to moto, byte for byte. Signatures are read, not verified: this
endpoint listens on loopback and protects nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import httpx
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from dispatcher.ports import Clock, Ids
from dispatcher.processes.bootstrap import RealClock, RealIds
from headgate.local.aws_lambda.invocation import INIT_TIMEOUT_S, FunctionSpec, LambdaAnswer, LambdaRequest
from headgate.local.aws_lambda.invoke_api import InvokeApi, LambdaFunction
from headgate.local.aws_lambda.pool import EVENT_RETRY_DELAYS_S, FunctionPool, InvocationQueue, TooManyRequests
from headgate.local.aws_lambda.triggers import QueueMapping, Schedule, SqsQueue, poll, tick
from headgate.local.embedded_server import EmbeddedServer, log_failure
from headgate.machine.processes import Children

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "proxy-authorization",
        "proxy-connection",
    }
)
_SCOPE = re.compile(r"Credential=[^/,\s]+/\d{8}/[^/,\s]*/(?P<service>[\w.-]+)/aws4_request")
_PRESIGNED_SCOPE = re.compile(r"[^/]+/\d{8}/[^/]*/(?P<service>[\w.-]+)/aws4_request")


def service_of(authorization: str | None, presigned_credential: str | None) -> str | None:
    """Return the service that a signature names; None if there is no signature of version 4."""
    if authorization is not None:
        found = _SCOPE.search(authorization) if authorization.startswith("AWS4-HMAC-SHA256") else None
    else:
        found = _PRESIGNED_SCOPE.fullmatch(presigned_credential or "")
    return found["service"].lower() if found else None


class Gateway:
    """The ASGI application. `endpoints`: base URL by service; `default_url`: of every other service."""

    def __init__(self, invoke_api: InvokeApi, default_url: str, endpoints: Mapping[str, str] | None = None) -> None:
        self._invoke_api = invoke_api
        self._default_url = default_url
        self._endpoints = endpoints or {}
        # No read timeout: a long poll of SQS is silent for 20 s, and the SDK has timeouts of its own.
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=5.0), limits=httpx.Limits(max_connections=None), trust_env=False
        )
        self.app = Starlette(routes=[Route("/{path:path}", self._answer, methods=_METHODS)])

    async def close(self) -> None:
        await self._http.aclose()

    async def _answer(self, request: Request) -> Response:
        service = service_of(request.headers.get("authorization"), request.query_params.get("X-Amz-Credential"))
        if service is None:
            return unsigned()
        if service == "lambda":
            return await self._invoke_api.answer(request)
        return await self._forward(request, self._endpoints.get(service, self._default_url))

    async def _forward(self, request: Request, base_url: str) -> Response:
        upstream = self._http.build_request(
            request.method,
            httpx.URL(base_url).copy_with(raw_path=_raw_path(request)),
            headers=_end_to_end(request.headers.raw),
            content=request.stream() if _has_body(request) else None,
        )
        try:
            answer = await self._http.send(upstream, stream=True)
        except httpx.TransportError as error:
            return _aws_error(
                503, "ServiceUnavailable", f"The local service at {base_url} does not answer: {type(error).__name__}"
            )
        response = StreamingResponse(answer.aiter_raw(), answer.status_code, background=BackgroundTask(answer.aclose))
        response.raw_headers = _end_to_end(answer.headers.raw)
        return response


def _raw_path(request: Request) -> bytes:
    path: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    query: bytes = request.scope["query_string"]
    return path.split(b"?")[0] + (b"?" + query if query else b"")


def _has_body(request: Request) -> bool:
    return "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"


def _end_to_end(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in headers if name.decode("latin-1").lower() not in _HOP_BY_HOP]


def _aws_error(status: int, kind: str, message: str) -> Response:
    """Make an error in the shape of AWS's JSON protocols; the SDK of any other protocol shows its text."""
    return JSONResponse({"__type": kind, "message": message}, status, {"x-amzn-ErrorType": kind})


def unsigned() -> Response:
    return _aws_error(
        403,
        "MissingAuthenticationTokenException",
        "Missing Authentication Token: this endpoint finds the service in the AWS Signature Version 4 of a request. "
        "Use an AWS SDK or the AWS CLI with any credentials.",
    )


_INVOKE_CONCURRENCY = 6
"""Each environment is a process that waits with its caller: more of them cost memory and serve nothing sooner."""


def function_specs(environment: Mapping[str, str], init_timeout_s: float = INIT_TIMEOUT_S) -> tuple[FunctionSpec, ...]:
    """Return the functions. `environment`: variables that every handler gets."""

    def spec(name: str, module: str, timeout_s: float, concurrency: int) -> FunctionSpec:
        return FunctionSpec(
            name=f"headgate-{name}",
            handler=f"functions.{module}.handler.handler",
            timeout_s=timeout_s,
            concurrency=concurrency,
            environment=dict(environment),
            init_timeout_s=init_timeout_s,
        )

    return (
        spec("invoke", "invoke", 300.0, _INVOKE_CONCURRENCY),
        spec("result", "result", 30.0, 2),
        spec("execute", "execute", 300.0, 2),
        spec("sweep", "sweep", 60.0, 1),
        spec("admin", "admin", 30.0, 1),
    )


logger = logging.getLogger(__name__)

_SWEEP_EVERY_S = 5.0
"""In the cloud it is a minute; a demo must not wait that long."""


@dataclass(frozen=True)
class Wiring:
    """Functions, and the queues and schedules that invoke them."""

    functions: Sequence[FunctionSpec]
    queues: Sequence[QueueMapping] = ()
    schedules: Sequence[Schedule] = ()


def headgate_wiring(environment: Mapping[str, str], init_timeout_s: float = INIT_TIMEOUT_S) -> Wiring:
    """Return headgate's functions, queue and schedule, as the CDK app deploys them.

    `environment`: variables that every handler gets; HEADGATE_QUEUE_URL names the queue. `init_timeout_s`: seconds that
    a handler may take to load.
    """
    queue_url = environment["HEADGATE_QUEUE_URL"]
    return Wiring(
        function_specs(environment, init_timeout_s),
        queues=[QueueMapping(queue_url, "headgate-execute", batch_size=1)],
        schedules=[Schedule("headgate-sweep", _SWEEP_EVERY_S)],
    )


class LocalAws:
    """The local AWS. `wiring`: default headgate's. `port` 0 takes a free port. `dynamodb_url`: default moto."""

    def __init__(
        self,
        children: Children,
        environment: Mapping[str, str],
        *,
        moto_url: str,
        dynamodb_url: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        wiring: Wiring | None = None,
        event_retry_delays_s: Sequence[float] = EVENT_RETRY_DELAYS_S,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self._wiring = wiring or headgate_wiring(environment)
        self._clock: Clock = clock or RealClock()
        self._ids: Ids = ids or RealIds()
        self._moto_url = moto_url
        self._functions = [
            self._function(spec, children, environment, event_retry_delays_s) for spec in self._wiring.functions
        ]
        self._by_name = {function.pool.spec.name: function for function in self._functions}
        endpoints = {} if dynamodb_url is None else {"dynamodb": dynamodb_url}
        self._gateway = Gateway(InvokeApi(self._functions, self._ids.new), moto_url, endpoints)
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(30.0), trust_env=False)
        self._server = EmbeddedServer(self._gateway.app, host, port)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> str:
        """Serve, poll and send scheduled events from now on. Return the endpoint's URL.

        Raises OSError if the port is in use.
        """
        address = await self._server.start()
        work = [self._poll(mapping) for mapping in self._wiring.queues]
        work += [self._tick(schedule) for schedule in self._wiring.schedules]
        for task in map(asyncio.create_task, work):
            task.add_done_callback(log_failure)
            self._tasks.append(task)
        return f"http://{address}"

    async def prewarm(self, function_name: str, count: int) -> None:
        """Start `count` environments of a function and wait until their handlers are loaded."""
        await self._by_name[function_name].pool.prewarm(count)

    async def warm(self, api_key: str) -> None:
        """Invoke the functions that tenants call once, so that the first call of a tenant waits for no cold start.

        The requests name no model and no invocation that exist. So they are refused, and cost the tenant nothing.
        """
        requests = {
            "headgate-invoke": {"api_key": api_key, "model": "warm-up", "prompt": "warm-up"},
            "headgate-result": {"api_key": api_key, "id": "warm-up"},
        }
        await asyncio.gather(*(self.invoke(name, json.dumps(each).encode()) for name, each in requests.items()))

    async def invoke(self, function_name: str, payload: bytes) -> LambdaAnswer:
        """Invoke a function with a new request id, as an event source does. Raises TooManyRequests."""
        return await self._by_name[function_name].pool.invoke(LambdaRequest(self._ids.new(), payload))

    async def events_done(self, function_name: str) -> None:
        """Wait until the function's asynchronous invocations have ended, with their retries."""
        await self._by_name[function_name].events.done()

    async def stop(self) -> None:
        """Cut open connections, kill environments and drop queued events. Repeatable."""
        await asyncio.gather(*(function.events.stop() for function in self._functions))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(self._server.stop(), *(function.pool.stop() for function in self._functions))
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._gateway.close()
        await self._http.aclose()

    def _function(
        self, spec: FunctionSpec, children: Children, environment: Mapping[str, str], retry_delays_s: Sequence[float]
    ) -> LambdaFunction:
        pool = FunctionPool(spec, children, environment, self._clock.now)
        return LambdaFunction(pool, InvocationQueue(pool, retry_delays_s=retry_delays_s, sleep=self._clock.sleep))

    async def _poll(self, mapping: QueueMapping) -> None:
        queue = SqsQueue(mapping.queue_url, self._moto_url, self._http)
        await poll(mapping, queue, partial(self.invoke, mapping.function_name))

    async def _tick(self, schedule: Schedule) -> None:
        async def fire(event: bytes) -> None:
            try:
                answer = await self.invoke(schedule.function_name, event)
            except TooManyRequests:
                return  # the function still works on the event before
            if answer.function_error is not None:
                logger.warning("scheduled %s failed: see its log", schedule.function_name)

        await tick(schedule, fire, sleep=self._clock.sleep, now=self._clock.now, new_id=self._ids.new)
