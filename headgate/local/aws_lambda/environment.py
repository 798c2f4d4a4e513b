"""One Lambda execution environment: an `awslambdaric` process and the Runtime API that it, alone, speaks to.

Runtime API, 2018-06-01: `next` blocks until there is an invocation, `response` and `error` end it, `init/error` says
that the handler could not be loaded. `next` names no environment, so each has a port of its own.
Not here: extensions, layers, telemetry, response streaming, SnapStart.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headgate.local.aws_lambda.runtime_api import RuntimeApi, RuntimeReply
from headgate.local.processes import Child, Children

ACCOUNT_ID = "123456789012"
REGION = "us-east-1"
RESPONSE_BYTES_MAX = 6 * 1024 * 1024 + 100
INIT_TIMEOUT_S = 60.0
"""Lambda allows 10 s, then tries again under the function's own timeout; here one longer try, for a busy laptop."""
INHERITED_VARIABLES = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "COVERAGE_PROCESS_START",
)
"""What a handler sees of the machine's environment: never its AWS credentials or profile."""


@dataclass(frozen=True)
class FunctionSpec:
    """A function as Lambda would be told of it.

    `handler`: importable module, a dot, and the callable. `timeout_s`: seconds from the moment that the handler is
    given the event. `concurrency`: environments at most; more callers get 429. `environment`: added to what Lambda
    sets. `memory_mb`: told to the handler, not enforced. `init_timeout_s`: seconds that the handler may take to load.
    """

    name: str
    handler: str
    timeout_s: float = 3.0
    concurrency: int = 10
    environment: Mapping[str, str] = field(default_factory=dict)
    memory_mb: int = 512
    init_timeout_s: float = INIT_TIMEOUT_S

    @property
    def arn(self) -> str:
        return f"arn:aws:lambda:{REGION}:{ACCOUNT_ID}:function:{self.name}"


@dataclass(frozen=True)
class LambdaRequest:
    """One invocation of a function. `client_context`: JSON text, or None."""

    request_id: str
    payload: bytes
    qualifier: str | None = None
    trace_id: str | None = None
    client_context: str | None = None


@dataclass(frozen=True)
class LambdaAnswer:
    """What a function answered. `function_error`: None, or Lambda's word for a fault ("Unhandled").

    `reusable`: whether the environment survived. `log_tail`: the end of what it logged meanwhile.
    """

    payload: bytes
    function_error: str | None = None
    reusable: bool = True
    log_tail: bytes = b""


def fault(error_type: str, message: str, *, reusable: bool = False) -> LambdaAnswer:
    payload = json.dumps({"errorType": error_type, "errorMessage": message}).encode()
    return LambdaAnswer(payload, function_error="Unhandled", reusable=reusable)


class Sandbox:
    """One environment, from cold start to its end. Serves one invocation at a time."""

    def __init__(self, spec: FunctionSpec, child: Child, api: RuntimeApi) -> None:
        self._spec = spec
        self._child = child
        self._api = api
        self._died = asyncio.create_task(child.wait())

    @classmethod
    async def start(cls, spec: FunctionSpec, name: str, children: Children, environment: Mapping[str, str]) -> Sandbox:
        """Starts the process; its initialisation goes on, and `invoke` waits for it."""
        api = RuntimeApi()
        await api.start()
        child = await children.spawn(
            name,
            [sys.executable, "-m", "awslambdaric", spec.handler],
            environment={
                **{key: os.environ[key] for key in INHERITED_VARIABLES if key in os.environ},
                **lambda_environment(spec, api.address, name),
                **environment,
                **spec.environment,
            },
            cwd=Path(__file__).parents[2],
            vital=False,  # a handler may exit: its caller is told, and the next one gets a new environment
        )
        return cls(spec, child, api)

    @property
    def alive(self) -> bool:
        return self._child.returncode is None

    async def ready(self, request_id: str = "init") -> LambdaAnswer | None:
        """None when the handler is loaded and asks for work; else the fault to answer with."""
        waiting = asyncio.create_task(self._api.wait_until_asked())
        try:
            await self._first_of(waiting, self._spec.init_timeout_s)
            if waiting.done():
                failed = waiting.result()
                return None if failed is None else LambdaAnswer(failed, "Unhandled", reusable=False)
            return (
                self._gone(request_id) if self._died.done() else self._timed_out(request_id, self._spec.init_timeout_s)
            )
        finally:
            waiting.cancel()

    async def invoke(self, request: LambdaRequest, deadline_ms: int) -> LambdaAnswer:
        """Hands one event to the handler. Always answers: a crash and a timeout are faults like any other."""
        init_fault = await self.ready(request.request_id)
        if init_fault is not None:
            return init_fault
        logged_before = self._child.log_path.stat().st_size
        answering = asyncio.create_task(self._api.hand_over(request.payload, self._headers(request, deadline_ms)))
        try:
            await self._first_of(answering, self._spec.timeout_s)
            if answering.done():
                answer = _answer_of(answering.result())
            elif self._died.done():
                answer = self._gone(request.request_id)
            else:
                answer = self._timed_out(request.request_id, self._spec.timeout_s)
        finally:
            answering.cancel()
        return LambdaAnswer(answer.payload, answer.function_error, answer.reusable, self._log_since(logged_before))

    async def stop(self) -> None:
        """SIGKILL, as Lambda ends an environment without extensions."""
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

    def _gone(self, request_id: str) -> LambdaAnswer:
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
            return log.read()[-4096:]


def _answer_of(reply: RuntimeReply) -> LambdaAnswer:
    if reply.is_error:
        return LambdaAnswer(reply.body, function_error="Unhandled")
    if len(reply.body) > RESPONSE_BYTES_MAX:
        message = f"Response payload size exceeded maximum allowed payload size ({RESPONSE_BYTES_MAX} bytes)."
        return fault("Function.ResponseSizeTooLarge", message, reusable=True)
    return LambdaAnswer(reply.body)


def lambda_environment(spec: FunctionSpec, runtime_api: str, sandbox_name: str) -> dict[str, str]:
    """The variables that Lambda sets for every handler, with credentials that open nothing."""
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
