"""CORS: lets pages of other origins call the gate from a browser, if the configuration names these origins."""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

EXPOSED = (
    "retry-after",
    "x-request-id",
    "x-headgate-queue-position",
    "x-headgate-estimated-wait-ms",
    "x-headgate-estimated-wait-p90-ms",
    "x-headgate-dropped-fields",
)
"""The headers of an answer that a page may read."""
PREFLIGHT_KEPT_S = 600


class ConfiguredCors:
    """ASGI middleware. The origins are known when the app has started (Context.cors_origins); none by default.

    A preflight request has no key, so this middleware answers it before any handler looks for one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._cors: CORSMiddleware | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origins = scope["app"].state.context.cors_origins if scope["type"] == "http" else ()
        if not origins:
            return await self._app(scope, receive, send)
        if self._cors is None:
            self._cors = CORSMiddleware(
                self._app,
                allow_origins=origins,
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=EXPOSED,
                max_age=PREFLIGHT_KEPT_S,
            )
        return await self._cors(scope, receive, send)
