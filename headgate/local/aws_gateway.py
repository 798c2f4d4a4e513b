"""One endpoint for all AWS services: an unmodified SDK needs no setting but AWS_ENDPOINT_URL.

The credential scope of a request's signature (Signature Version 4) names its service. Requests for `lambda` are
answered here, by real `awslambdaric` processes; all others are forwarded to moto, byte for byte. Signatures are read,
not verified: this endpoint listens on loopback and protects nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import httpx
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from headgate.local.aws_lambda.invoke_api import InvokeApi

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
HOP_BY_HOP = frozenset(
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
SCOPE = re.compile(r"Credential=[^/,\s]+/\d{8}/[^/,\s]*/(?P<service>[\w.-]+)/aws4_request")
PRESIGNED_SCOPE = re.compile(r"[^/]+/\d{8}/[^/]*/(?P<service>[\w.-]+)/aws4_request")


def service_of(authorization: str | None, presigned_credential: str | None) -> str | None:
    """Return the service that a signature names; None if there is no signature of version 4."""
    if authorization is not None:
        found = SCOPE.search(authorization) if authorization.startswith("AWS4-HMAC-SHA256") else None
    else:
        found = PRESIGNED_SCOPE.fullmatch(presigned_credential or "")
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
        self.app = Starlette(routes=[Route("/{path:path}", self._answer, methods=METHODS)])

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
            return aws_error(
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
    return [(name.lower(), value) for name, value in headers if name.decode("latin-1").lower() not in HOP_BY_HOP]


def aws_error(status: int, kind: str, message: str) -> Response:
    """Make an error in the shape of AWS's JSON protocols; the SDK of any other protocol shows its text."""
    return JSONResponse({"__type": kind, "message": message}, status, {"x-amzn-ErrorType": kind})


def unsigned() -> Response:
    return aws_error(
        403,
        "MissingAuthenticationTokenException",
        "Missing Authentication Token: this endpoint finds the service in the AWS Signature Version 4 of a request. "
        "Use an AWS SDK or the AWS CLI with any credentials.",
    )
