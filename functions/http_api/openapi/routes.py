"""The routes of the documentation: `GET /openapi.json` (document.py), and `GET /docs`, one HTML page without scripts.

The page is made here from the same data as the document. The routes need no key: document and page are the same for
every caller of a pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from html import escape

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from dispatcher.fields.kinds import Field, FieldTable
from functions.http_api.callers import context_of
from functions.http_api.openapi.document import OPERATIONS, document
from functions.http_api.openapi.schemas import ACCEPTED

_KEPT = {"cache-control": "public, max-age=3600"}
_NO_SCRIPTS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
td, th { border-bottom: 1px solid #ccc; padding: .3rem .6rem; text-align: left; vertical-align: top; }
code { background: #8882; padding: 0 .2rem; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd; } a { color: #8bf; } }
"""


async def _document(request: Request) -> Response:
    drops_unknown = context_of(request).settings.drops_unknown_fields
    return JSONResponse(document(drops_unknown=drops_unknown), headers=_KEPT)


async def _page(_: Request) -> Response:
    return HTMLResponse(page(), headers={**_KEPT, **_NO_SCRIPTS})


@cache
def page() -> str:
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>headgate</title><style>{_STYLE}</style>'
    yield '<meta name="viewport" content="width=device-width"></head><body><h1>headgate</h1>'
    yield (
        "<p>OpenAI's API, with fair shares for every tenant. Send your key as <code>Authorization: Bearer KEY</code>; "
        'the base URL ends with <code>/v1</code>. The same as JSON: <a href="openapi.json">openapi.json</a>.</p>'
    )
    yield "<table><tr><th>Route</th><th></th></tr>"
    for each in OPERATIONS:
        route = f"<code>{each.method.upper()} {escape(each.path)}</code>"
        link = route if each.table is None else f'<a href="#{_anchor(each.table)}">{route}</a>'
        yield f"<tr><td>{link}</td><td>{escape(each.summary)}</td></tr>"
    yield "</table>"
    for each in OPERATIONS:
        if each.table is not None:
            yield from _table(each.table)
    yield "</body></html>"


def _table(table: FieldTable) -> Iterator[str]:
    yield f'<h2 id="{_anchor(table)}">{escape(table.title)}</h2>'
    yield "<table><tr><th>Field</th><th>Values</th><th>Needs</th><th></th></tr>"
    for name, field in sorted(table.fields.items(), key=lambda pair: (not pair[1].required, pair[0])):
        if field.kind in ACCEPTED:
            yield _row(name, field)
    yield "</table><p>An unknown field is refused by its name. Null means that a field is not sent.</p>"


def _row(name: str, field: Field) -> str:
    cells = (
        f"<code>{escape(name)}</code>{' (required)' if field.required else ''}",
        escape(field.shape.text()),
        escape(" or ".join(field.capability)),
        escape(field.note),
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _anchor(table: FieldTable) -> str:
    return escape(table.title.rpartition("/")[2])


ROUTES = [Route("/openapi.json", _document, methods=["GET"]), Route("/docs", _page, methods=["GET"])]
