"""One Lambda execution environment: an `awslambdaric` process and its Runtime API (2018-06-01), on a port of its own.

GET  invocation/next             blocks until there is an event
POST invocation/{id}/response    the handler's answer
POST invocation/{id}/error       the error that the handler raised
POST init/error                  the handler could not be loaded

A port for each environment: `next` does not name its environment, and AWS_LAMBDA_RUNTIME_API may carry host and port
only (awslambdaric posts init/error through http.client, which accepts no path there).

Not supported: extensions, layers, telemetry, response streaming, SnapStart.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headgate.local.aws_lambda.invocation import REGION, FunctionSpec, LambdaAnswer, LambdaRequest, fault
from headgate.local.embedded_server import EmbeddedServer, body_within
from headgate.machine.processes import Child, Children

_RESPONSE_BYTES_MAX = 6 * 1024 * 1024 + 100
_LOG_TAIL_BYTES = 4096
"""As much as Lambda returns with LogType=Tail."""
_INHERITED_VARIABLES = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "COVERAGE_PROCESS_START",
)
"""Variables of this machine that a handler gets: never its AWS credentials or profile."""


class Sandbox:
    """One environment, from its cold start to its end. It serves one invocation at a time."""

    def __init__(self, spec: FunctionSpec, child: Child, api: RuntimeApi) -> None:
        self._spec = spec
        self._child = child
        self._api = api
        self._died = asyncio.create_task(child.wait())

    @classmethod
    async def start(cls, spec: FunctionSpec, name: str, children: Children, environment: Mapping[str, str]) -> Sandbox:
        """Start the process. `invoke` waits until the handler is loaded."""
        api = RuntimeApi()
        address = await api.start()
        child = await children.spawn(
            name,
            [sys.executable, "-m", "awslambdaric", spec.handler],
            environment={
                **{key: os.environ[key] for key in _INHERITED_VARIABLES if key in os.environ},
                **_lambda_environment(spec, address, name),
                **environment,
                **spec.environment,
            },
            cwd=Path(__file__).parents[3],
            vital=False,  # a handler may exit: its caller gets a fault, and the next caller a new environment
        )
        return cls(spec, child, api)

    @property
    def alive(self) -> bool:
        return self._child.returncode is None

    async def ready(self, request_id: str = "init") -> LambdaAnswer | None:
        """Wait until the handler is loaded; return the fault to answer with if it cannot be."""
        waiting = asyncio.create_task(self._api.wait_until_loaded())
        try:
            await self._first_of(waiting, self._spec.init_timeout_s)
            if waiting.done():
                failed = waiting.result()
                return None if failed is None else LambdaAnswer(failed, "Unhandled", reusable=False)
            return (
                self._exit_fault(request_id)
                if self._died.done()
                else self._timed_out(request_id, self._spec.init_timeout_s)
            )
        finally:
            waiting.cancel()

    async def invoke(self, request: LambdaRequest, deadline_ms: int) -> LambdaAnswer:
        """Give one event to the handler and return its answer. A crash and a timeout are answered with a fault."""
        init_fault = await self.ready(request.request_id)
        if init_fault is not None:
            return init_fault
        logged_before = self._child.log_path.stat().st_size
        answering = asyncio.create_task(self._api.invoke(request.payload, self._headers(request, deadline_ms)))
        try:
            await self._first_of(answering, self._spec.timeout_s)
            if answering.done():
                answer = _answer_of(answering.result())
            elif self._died.done():
                answer = self._exit_fault(request.request_id)
            else:
                answer = self._timed_out(request.request_id, self._spec.timeout_s)
        finally:
            answering.cancel()
        return LambdaAnswer(answer.payload, answer.function_error, answer.reusable, self._log_since(logged_before))

    async def stop(self) -> None:
        """Kill the process (SIGKILL), as Lambda ends an environment without extensions."""
        self._child.kill()
        await self._died
        await self._api.stop()

    async def _first_of(self, task: asyncio.Task[object], timeout_s: float) -> None:
        await asyncio.wait({task, self._died}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)

    def _headers(self, request: LambdaRequest, deadline_ms: int) -> dict[str, str]:
        arn = self._spec.arn if request.qualifier is None else f"{self._spec.arn}:{request.qualifier}"
        headers = {
            "Lambda-Runtime-Aws-Request-Id": request.request_id,
            "Lambda-Runtime-Deadline-Ms": str(deadline_ms),
            "Lambda-Runtime-Invoked-Function-Arn": arn,
        }
        if request.trace_id is not None:
            headers["Lambda-Runtime-Trace-Id"] = request.trace_id
        if request.client_context is not None:
            headers["Lambda-Runtime-Client-Context"] = request.client_context
        return headers

    def _exit_fault(self, request_id: str) -> LambdaAnswer:
        status = self._died.result()
        how = (
            f"exit status {status}"
            if status >= 0
            else f"signal: {signal.Signals(-status).name.removeprefix('SIG').lower()}"
        )
        return fault("Runtime.ExitError", f"RequestId: {request_id} Error: Runtime exited with error: {how}")

    def _timed_out(self, request_id: str, timeout_s: float) -> LambdaAnswer:
        return fault("Sandbox.Timedout", f"RequestId: {request_id} Error: Task timed out after {timeout_s:.2f} seconds")

    def _log_since(self, offset: int) -> bytes:
        with self._child.log_path.open("rb") as log:
            log.seek(offset)
            return log.read()[-_LOG_TAIL_BYTES:]


def _answer_of(reply: RuntimeReply) -> LambdaAnswer:
    if reply.is_error:
        return LambdaAnswer(reply.body, function_error="Unhandled")
    if len(reply.body) > _RESPONSE_BYTES_MAX:
        message = f"Response payload size exceeded maximum allowed payload size ({_RESPONSE_BYTES_MAX} bytes)."
        return fault("Function.ResponseSizeTooLarge", message, reusable=True)
    return LambdaAnswer(reply.body)


def _lambda_environment(spec: FunctionSpec, runtime_api: str, sandbox_name: str) -> dict[str, str]:
    """Return the variables that Lambda sets for every handler. The credentials are valid nowhere."""
    return {
        "AWS_LAMBDA_RUNTIME_API": runtime_api,
        "AWS_LAMBDA_FUNCTION_NAME": spec.name,
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(spec.memory_mb),
        "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{spec.name}",
        "AWS_LAMBDA_LOG_STREAM_NAME": sandbox_name,
        "AWS_EXECUTION_ENV": f"AWS_Lambda_python{sys.version_info.major}.{sys.version_info.minor}",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "_HANDLER": spec.handler,
        "TZ": ":UTC",
    }


_HEAD_BYTES_MAX = 2 * 1024 * 1024
"""The runtime puts an X-Ray cause of up to 1 MB into a header."""
_BODY_BYTES_MAX = 64 * 1024 * 1024
_KEEP_ALIVE_S = 3600
"""The runtime keeps its connection while its handler works, up to 900 s."""
PREFIX = "/2018-06-01/runtime"


@dataclass(frozen=True)
class RuntimeReply:
    """The handler's answer, or the error that it raised (`is_error`)."""

    body: bytes
    is_error: bool


@dataclass(frozen=True)
class _Event:
    payload: bytes
    headers: Mapping[str, str]
    reply: asyncio.Future[RuntimeReply]

    @property
    def request_id(self) -> str:
        return self.headers["Lambda-Runtime-Aws-Request-Id"]


class RuntimeApi:
    """`start`, give the address to the runtime, `wait_until_loaded`, then `invoke` for one event at a time."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[_Event | None] = asyncio.Queue()
        """None: the environment stops."""
        self._current: _Event | None = None
        self._loaded = asyncio.Event()
        self._init_error: bytes | None = None
        routes = [
            Route(f"{PREFIX}/invocation/next", self._next, methods=["GET"]),
            Route(
                f"{PREFIX}/invocation/{{request_id}}/response", partial(self._finish, is_error=False), methods=["POST"]
            ),
            Route(f"{PREFIX}/invocation/{{request_id}}/error", partial(self._finish, is_error=True), methods=["POST"]),
            Route(f"{PREFIX}/init/error", self._on_init_error, methods=["POST"]),
        ]
        self._server = EmbeddedServer(
            Starlette(routes=routes),
            http="h11",
            h11_max_incomplete_event_size=_HEAD_BYTES_MAX,
            timeout_keep_alive=_KEEP_ALIVE_S,
            server_header=False,
            date_header=False,
        )

    async def start(self) -> str:
        """Start to serve and return host:port."""
        return await self._server.start()

    async def stop(self) -> None:
        self._events.put_nowait(None)
        await self._server.stop()

    async def wait_until_loaded(self) -> bytes | None:
        """Return None once the runtime asks for an event, or the error's JSON if it could not load the handler."""
        await self._loaded.wait()
        return self._init_error

    async def invoke(self, payload: bytes, headers: Mapping[str, str]) -> RuntimeReply:
        """Give an event to the handler and wait for its reply."""
        event = _Event(payload, headers, asyncio.get_running_loop().create_future())
        self._events.put_nowait(event)
        return await event.reply

    async def _next(self, request: Request) -> Response:
        self._loaded.set()
        event = await self._events.get()
        if event is None:
            self._events.put_nowait(None)  # for any other connection that waits
            return JSONResponse({"errorType": "Stopped"}, 410)
        self._current = event
        return Response(event.payload, headers=event.headers, media_type="application/json")

    async def _finish(self, request: Request, *, is_error: bool) -> Response:
        body = await body_within(request, _BODY_BYTES_MAX)
        if body is None:
            return JSONResponse({"errorType": "RequestEntityTooLarge"}, 413)
        event = self._current
        if event is None or event.request_id != request.path_params["request_id"] or event.reply.done():
            return JSONResponse({"errorType": "InvalidRequestID"}, 400)
        event.reply.set_result(RuntimeReply(body, is_error))
        self._current = None
        return _ok_response()

    async def _on_init_error(self, request: Request) -> Response:
        self._init_error = await request.body()
        self._loaded.set()
        return _ok_response()


def _ok_response() -> Response:
    return JSONResponse({"status": "OK"}, 202)
