"""The OpenAPI 3.1 document of the HTTP face: `GET /openapi.json`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple

from dispatcher.fields.kinds import FieldTable
from dispatcher.fields.tables import BATCH_TABLE, CHAT_TABLE, COMPLETION_TABLE, EMBEDDINGS_TABLE, RESPONSES_TABLE
from dispatcher.model.batches import INPUT
from functions.envelope import ID
from functions.http_api.openapi.schemas import Json, object_of, opened
from functions.http_api.routes.batches import PARAMETERS as BATCH_PARAMETERS
from functions.http_api.routes.files import PARAMETERS as FILE_PARAMETERS
from functions.http_api.routes.usage import PARAMETERS as USAGE_PARAMETERS


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
    schemas = {_name(each): object_of(each.table.fields) for each in _with_body()}
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
