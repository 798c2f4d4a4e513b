"""Lambda's Invoke API for unmodified SDKs. Errors have Lambda's types, codes and messages.

POST /2015-03-31/functions/{name}/invocations     RequestResponse, Event, DryRun; LogType=Tail
GET  /2015-03-31/functions/                       ListFunctions, in one page
GET  /2015-03-31/functions/{name}[/configuration] GetFunction, GetFunctionConfiguration
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headgate.local.aws_lambda.invocation import LambdaAnswer, LambdaRequest
from headgate.local.aws_lambda.pool import FunctionPool, InvocationQueue, TooManyRequests
from headgate.local.embedded_server import body_within

_SYNCHRONOUS_BYTES_MAX = 6 * 1024 * 1024
_EVENT_BYTES_MAX = 1024 * 1024
_NAME = re.compile(
    r"(?:arn:aws[\w-]*:lambda:[\w-]+:)?(?:\d{12}:)?(?:function:)?([A-Za-z0-9_-]{1,64})(?::([A-Za-z0-9$_-]{1,128}))?"
)
_LIVE = "live"
"""The alias that the stack gives the functions of tenants. Here every function has it, beside $LATEST."""
_QUALIFIER = re.compile(r"[A-Za-z0-9$_-]{1,128}")


class LambdaError(Exception):
    """An error of the service, not of the function. `kind`: the name of its shape in Lambda's API model."""

    def __init__(self, status: int, kind: str, message: str, **more: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.body = {"Type": "User" if status < 500 else "Service", "message": message, "Message": message, **more}


def _no_such_function(name: str) -> LambdaError:
    return LambdaError(404, "ResourceNotFoundException", f"Function not found: {name}")


def _too_large(bytes_max: int) -> LambdaError:
    message = f"Request must be smaller than {bytes_max} bytes for the InvokeFunction operation"
    return LambdaError(413, "RequestTooLargeException", message)


def _rate_exceeded() -> LambdaError:
    reason = "ReservedFunctionConcurrentInvocationLimitExceeded"
    return LambdaError(429, "TooManyRequestsException", "Rate Exceeded.", Reason=reason)


@dataclass(frozen=True)
class LambdaFunction:
    pool: FunctionPool
    events: InvocationQueue

    def configuration(self) -> dict[str, object]:
        spec = self.pool.spec
        return {
            "FunctionName": spec.name,
            "FunctionArn": spec.arn,
            "Handler": spec.handler,
            "Timeout": int(spec.timeout_s),
            "MemorySize": spec.memory_mb,
            "Version": "$LATEST",
            "State": "Active",
            "PackageType": "Zip",
        }


class InvokeApi:
    """Answers requests of the Invoke API. `new_id` makes request ids."""

    def __init__(self, functions: Sequence[LambdaFunction], new_id: Callable[[], str]) -> None:
        self._functions: Mapping[str, LambdaFunction] = {f.pool.spec.name: f for f in functions}
        self._new_id = new_id

    async def answer(self, request: Request) -> Response:
        """Answer a request in Lambda's shape, with a request id."""
        request_id = self._new_id()
        try:
            response = await self._route(request, request_id)
        except LambdaError as error:
            response = JSONResponse(error.body, error.status, {"x-amzn-ErrorType": error.kind})
        response.headers["x-amzn-RequestId"] = request_id
        return response

    async def _route(self, request: Request, request_id: str) -> Response:
        _, _, rest = request.url.path.partition("/2015-03-31/functions")
        match request.method, unquote(rest).strip("/").rsplit("/", 1):
            case "POST", [name, "invocations"]:
                return await self._invoke(request, name, request_id)
            case "GET", [""]:
                return JSONResponse({"Functions": [f.configuration() for f in self._functions.values()]})
            case "GET", [name, "configuration"]:
                return JSONResponse(self._find(name)[0].configuration())
            case "GET", [name]:
                function, _ = self._find(name)
                return JSONResponse({"Configuration": function.configuration(), "Code": {}, "Tags": {}})
        message = "The local stack supports Invoke, GetFunction, GetFunctionConfiguration and ListFunctions only."
        raise LambdaError(501, "NotImplementedException", message)

    def _find(self, name: str) -> tuple[LambdaFunction, str | None]:
        """Find a function by name, partial or whole ARN, each with or without a qualifier. Raises LambdaError."""
        parts = _NAME.fullmatch(name)
        function = self._functions.get(parts[1]) if parts else None
        if parts is None or function is None:
            raise _no_such_function(name)
        return function, parts[2]

    async def _invoke(self, request: Request, name: str, request_id: str) -> Response:
        function, qualifier = self._find(name)
        kind = request.headers.get("x-amz-invocation-type", "RequestResponse")
        if kind not in ("RequestResponse", "Event", "DryRun"):
            raise LambdaError(400, "InvalidParameterValueException", f"Unknown invocation type: {kind!r}")
        payload = await _payload(request, _EVENT_BYTES_MAX if kind == "Event" else _SYNCHRONOUS_BYTES_MAX)
        invocation = LambdaRequest(
            request_id=request_id,
            payload=payload,
            qualifier=_qualifier(request.query_params.get("Qualifier", qualifier), function.pool.spec.arn),
            trace_id=request.headers.get("x-amzn-trace-id"),
            client_context=_client_context(request.headers.get("x-amz-client-context")),
        )
        if kind == "DryRun":
            return Response(status_code=204)
        return await self._run(function, invocation, kind, request.headers.get("x-amz-log-type"))

    async def _run(
        self, function: LambdaFunction, invocation: LambdaRequest, kind: str, log_type: str | None
    ) -> Response:
        try:
            if kind == "Event":
                function.events.put(invocation)
                return Response(status_code=202)
            return _response(await function.pool.invoke(invocation), with_log=log_type == "Tail")
        except TooManyRequests:
            raise _rate_exceeded() from None


def _response(answer: LambdaAnswer, *, with_log: bool) -> Response:
    headers = {"X-Amz-Executed-Version": "$LATEST"}
    if answer.function_error is not None:
        headers["X-Amz-Function-Error"] = answer.function_error
    if with_log:
        headers["X-Amz-Log-Result"] = base64.b64encode(answer.log_tail).decode()
    return Response(answer.payload, 200, headers, media_type="application/json")


async def _payload(request: Request, bytes_max: int) -> bytes:
    """Read the event. An empty body is an empty object, as in Lambda. Raises LambdaError."""
    body = await body_within(request, bytes_max)
    if body is None:
        raise _too_large(bytes_max)
    _check_json(body or b"{}")
    return body or b"{}"


def _check_json(body: bytes) -> None:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        # Numbers stay text: only the function reads them, and a very long one is slow to convert.
        json.loads(body.decode("utf-8"), parse_int=str, parse_float=str, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        message = f"Could not parse request body into json: {error}"
        raise LambdaError(400, "InvalidRequestContentException", message) from None


def _qualifier(qualifier: str | None, arn: str) -> str | None:
    """Raises LambdaError for a qualifier that is malformed, or that the function does not have."""
    if qualifier is not None and not _QUALIFIER.fullmatch(qualifier):
        raise LambdaError(400, "InvalidParameterValueException", "Qualifier is malformed.")
    if qualifier not in (None, _LIVE, "$LATEST"):
        raise _no_such_function(f"{arn}:{qualifier}")
    return qualifier


def _client_context(header: str | None) -> str | None:
    """Decode the client context to one line, because the Runtime API sends it as a header. Raises LambdaError."""
    if header is None:
        return None
    try:
        return json.dumps(json.loads(base64.b64decode(header, validate=True)))
    except (ValueError, RecursionError):
        raise LambdaError(
            400, "InvalidRequestContentException", "Client context must be a valid JSON object."
        ) from None
