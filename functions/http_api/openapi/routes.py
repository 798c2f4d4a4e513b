"""The routes of the document and the page. They need no key: both are the same for every caller of a pool."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from functions.http_api.callers import context_of
from functions.http_api.openapi.document import document
from functions.http_api.openapi.page import page

_KEPT = {"cache-control": "public, max-age=3600"}
_NO_SCRIPTS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}


async def _document(request: Request) -> Response:
    drops_unknown = context_of(request).settings.drops_unknown_fields
    return JSONResponse(document(drops_unknown=drops_unknown), headers=_KEPT)


async def _page(_: Request) -> Response:
    return HTMLResponse(page(), headers={**_KEPT, **_NO_SCRIPTS})


ROUTES = [Route("/openapi.json", _document, methods=["GET"]), Route("/docs", _page, methods=["GET"])]
