"""The HTTP app of a worker from its first second: it answers /health while the model is still loading.

An orchestrator that asks whether the process lives must not kill it while a large model loads. One that asks whether
it serves, as ECS does for a deployment (infra/fleet/gpu_fleet.py), reads the status: "ok" when the model is loaded.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class Opening:
    """Answers all requests itself until `open` is called: GET /health with 200 and the status "loading", everything
    else with 503."""

    def __init__(self) -> None:
        self._app: ASGIApp = _loading

    def open(self, app: ASGIApp) -> None:
        """Let `app` answer all further requests."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


async def _loading(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope)
    is_health = request.url.path == "/health" and request.method == "GET"
    answer = JSONResponse({"status": "loading"}, 200 if is_health else 503)
    await answer(scope, receive, send)
