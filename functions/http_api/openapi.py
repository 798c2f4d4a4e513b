"""The OpenAPI 3.1 document of the HTTP face, and the documentation page, both from the table of fields.

`GET /openapi.json` is the document, with JSON schemas of requests from dispatcher/fields. `GET /docs` is one HTML page
without scripts. Neither needs a key: document and page are the same for every caller of a pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from html import escape
from importlib.metadata import version
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from dispatcher.fields.images import ImageUrl
from dispatcher.fields.kinds import Field, FieldTable, Kind, Shape
from dispatcher.fields.schemas import Free, PatternShape, Schema
from dispatcher.fields.shapes import (
    ByFirst,
    Either,
    Entries,
    Flag,
    Form,
    Items,
    Number,
    Record,
    Tagged,
    Text,
    TokenIds,
    Whole,
    Word,
)
from dispatcher.fields.tables import BATCH_TABLE, CHAT_TABLE, COMPLETION_TABLE, EMBEDDINGS_TABLE, RESPONSES_TABLE
from dispatcher.model.batches import INPUT
from functions.envelope import ID
from functions.http_api.callers import context_of
from functions.http_api.routes.batches import BATCH_PARAMETERS, FILE_PARAMETERS
from functions.http_api.routes.usage import PARAMETERS as USAGE_PARAMETERS

Json = dict[str, Any]
ACCEPTED = (Kind.READ, Kind.PASSED, Kind.BOUNDED, Kind.LABEL)
"""The kinds of the fields that a client may send. The others are refused, and are not part of the document."""


def _object_of(fields: Mapping[str, Field]) -> Json:
    """Return the schema of an object with these fields. It has no other fields, because the gate refuses them."""
    accepted = {name: each for name, each in sorted(fields.items()) if each.kind in ACCEPTED}
    return {
        "type": "object",
        "properties": {name: _field(each) for name, each in accepted.items()},
        "required": [name for name, each in accepted.items() if each.required],
        "additionalProperties": False,
    }


def opened(schema: Any) -> Any:
    """Return the schema without the rule that objects have no other fields."""
    if isinstance(schema, list):
        return [opened(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: each for name, each in schema.items() if (name, each) != ("additionalProperties", False)}
    return {name: opened(each) for name, each in kept.items()}


def _field(field: Field) -> Json:
    """Return the schema of a field. A field that is not required may be null."""
    schema = schema_of(field.shape)
    if not field.required and schema:
        schema = {"anyOf": [schema, {"type": "null"}]}
    needs = f"Needs the capability {' or '.join(field.capability)}." if field.capability else ""
    text = " ".join(filter(None, (field.note, needs)))
    return {**schema, **({"description": text} if text else {})}


def schema_of(shape: Shape) -> Json:
    """Return the schema of a shape; {} for any value."""
    match shape:
        case Flag():
            return {"type": "boolean"}
        case Whole():
            return {"type": "integer", **_bounds(minimum=shape.low, maximum=shape.high)}
        case Number():
            lowest = "exclusiveMinimum" if shape.above else "minimum"
            return {"type": "number", lowest: shape.low, "maximum": shape.high}
        case Text():
            pattern = {"pattern": f"^(?:{shape.pattern})$"} if shape.pattern else {}
            return {"type": "string", **_bounds(minLength=shape.shortest or None, maxLength=shape.longest), **pattern}
        case Word():
            return {"type": "string", "enum": list(shape.words)}
        case PatternShape():
            return {"type": "string", "description": shape.text()}
        case ImageUrl():
            return {"type": "string", "pattern": "^data:image/", "description": shape.text()}
        case TokenIds():
            return _list({"type": "integer", "minimum": 0}, shape.fewest, shape.most)
        case Items():
            return _list(schema_of(shape.of), shape.fewest, shape.most)
        case Schema() | Free():
            return {"type": "object", "description": shape.text()}
        case Entries():
            keys = {"propertyNames": schema_of(shape.key), "maxProperties": shape.most}
            return {"type": "object", "additionalProperties": schema_of(shape.of), **keys}
        case Record():
            return _object_of(shape.table.fields)
        case Tagged():
            return _any_of(_form(shape, name, form) for name, form in shape.forms.items() if not form.refused)
        case Either():
            return _any_of(map(schema_of, shape.shapes.values()))
        case ByFirst():
            return _any_of(schema_of(each) for each, _ in shape.shapes.values())
    return {}


def _form(shape: Tagged, name: str, form: Form) -> Json:
    schema = _object_of(form.table.fields)
    tag = [] if name == shape.usual else [shape.tag]
    properties = {shape.tag: {"type": "string", "const": name}, **schema["properties"]}
    return {**schema, "properties": properties, "required": [*tag, *schema["required"]]}


def _list(items: Json, fewest: int, most: int) -> Json:
    return {"type": "array", "items": items, **_bounds(minItems=fewest or None, maxItems=most)}


def _any_of(schemas: Iterable[Json]) -> Json:
    each = list(schemas)
    return each[0] if len(each) == 1 else {"anyOf": each}


def _bounds(**values: int | None) -> Json:
    return {name: value for name, value in values.items() if value is not None}


class Operation(NamedTuple):
    """One route. `table`: the fields of its body, if it has one. `query`: its query parameters, with their texts."""

    method: str
    path: str
    summary: str
    table: FieldTable | None = None
    streams: bool = False
    needs_key: bool = True
    uploads: bool = False
    """Its body is a form with a file."""
    takes_idempotency_key: bool = False
    query: Mapping[str, str] = {}


OPERATIONS = (
    Operation("post", "/v1/chat/completions", "Continue a chat.", CHAT_TABLE, streams=True, takes_idempotency_key=True),
    Operation(
        "post", "/v1/completions", "Continue a text.", COMPLETION_TABLE, streams=True, takes_idempotency_key=True
    ),
    Operation(
        "post",
        "/v1/responses",
        "Answer as OpenAI's Responses API does.",
        RESPONSES_TABLE,
        streams=True,
        takes_idempotency_key=True,
    ),
    Operation("get", "/v1/responses/{id}", "Return a stored response."),
    Operation("delete", "/v1/responses/{id}", "Delete a stored response."),
    Operation("post", "/v1/responses/{id}/cancel", "Refused: no response runs in the background."),
    Operation("get", "/v1/responses/{id}/input_items", "Return the input of a stored response."),
    Operation("post", "/v1/embeddings", "Turn texts into vectors.", EMBEDDINGS_TABLE, takes_idempotency_key=True),
    Operation("post", "/v1/files", "Upload the input file of a batch.", uploads=True),
    Operation("get", "/v1/files", "List the tenant's files.", query=FILE_PARAMETERS),
    Operation("get", "/v1/files/{id}", "Describe a file."),
    Operation("delete", "/v1/files/{id}", "Delete a file."),
    Operation("get", "/v1/files/{id}/content", "Return the content of a file."),
    Operation("post", "/v1/batches", "Answer the requests of a file when the service has room.", BATCH_TABLE),
    Operation("get", "/v1/batches", "List the tenant's batches.", query=BATCH_PARAMETERS),
    Operation("get", "/v1/batches/{id}", "Describe a batch."),
    Operation("post", "/v1/batches/{id}/cancel", "Cancel a batch; running requests end."),
    Operation("get", "/v1/models", "List the models that the key may use, with context length and capabilities."),
    Operation("get", "/v1/models/{name}", "Describe a model."),
    Operation(
        "get", "/v1/usage", "Return the tenant's tokens and service by application and hour.", query=USAGE_PARAMETERS
    ),
    Operation("get", "/health", "Say that this process answers.", needs_key=False),
    Operation("get", "/ready", "Say whether requests can be served; 503 if not.", needs_key=False),
)
"""The routes of app.py, except those of this document. A test compares them."""

_TEXT: Json = {"type": ["string", "null"]}
_ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {"message": {"type": "string"}, "type": {"type": "string"}, "param": _TEXT, "code": _TEXT},
        }
    },
}
_FORM: Json = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {"file": {"type": "string", "format": "binary"}, "purpose": {"const": INPUT}},
    "additionalProperties": False,
}
_IDEMPOTENCY: Json = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "pattern": f"^{ID.pattern}$"},
    "description": "A request with the same key and body gets the same answer, and is charged once.",
}


@cache
def document(*, drops_unknown: bool = False) -> Json:
    """Return the document. `drops_unknown`: the pool drops unknown fields, so its bodies may have other fields too."""
    schemas = {_name(each): _object_of(each.table.fields) for each in _with_body()}
    paths: dict[str, Json] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "headgate", "version": version("headgate"), "description": "LLM inference, shared fairly."},
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR, **(opened(schemas) if drops_unknown else schemas)},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _with_body() -> list[Any]:
    return [each for each in OPERATIONS if each.table is not None]


def _name(operation: Operation) -> str:
    """Return the name of the schema of an operation's body, for example `ChatCompletionsRequest`."""
    return "".join(part.title() for part in operation.path.split("/")[2:]) + "Request"


def _operation(operation: Operation) -> Json:
    made: Json = {"summary": operation.summary, "operationId": _id(operation), "responses": _responses(operation)}
    parameters = [_path_parameter(part) for part in operation.path.split("/") if part.startswith("{")]
    parameters += [_query_parameter(name, text) for name, text in operation.query.items()]
    if operation.table is not None:
        reference = {"$ref": f"#/components/schemas/{_name(operation)}"}
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": reference}}}
    elif operation.uploads:
        made["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}
    if operation.takes_idempotency_key:
        parameters.append(_IDEMPOTENCY)
    if parameters:
        made["parameters"] = parameters
    if not operation.needs_key:
        made["security"] = []
    return made


def _id(operation: Operation) -> str:
    path = operation.path.removeprefix("/v1").replace("{", "").replace("}", "")
    return operation.method + path.replace("/", "_")


def _path_parameter(part: str) -> Json:
    return {"name": part.strip("{}"), "in": "path", "required": True, "schema": {"type": "string"}}


def _query_parameter(name: str, text: str) -> Json:
    return {"name": name, "in": "query", "required": False, "schema": {"type": "string"}, "description": text}


def _responses(operation: Operation) -> Json:
    content: Json = {"application/json": {"schema": {"type": "object"}}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    errors = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    if not operation.needs_key:
        return {"200": {"description": "Yes.", "content": content}, "503": {"description": "Not now."}}
    return {
        "200": {"description": "The answer.", "content": content},
        "4XX": {"description": "The request is refused. A 429 has Retry-After.", "content": errors},
        "5XX": {"description": "headgate or its workers failed.", "content": errors},
    }


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
    drops_unknown = context_of(request).settings.unknown_fields == "drop"
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
