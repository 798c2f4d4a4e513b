"""OpenAI's responses over HTTP: their routes, and the form of an answer to POST /v1/responses.

A response is submitted as a chat, so every engine has it (dispatcher/responses/). Its answer is whole, or a stream of
OpenAI's semantic events. A response is kept before its answer ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dispatcher.model.answers import AnswerHead, Choices
from dispatcher.model.errors import AnsweredError, InvalidRequest
from dispatcher.model.worker_protocol import Finished, Started, Token, WorkEvent
from dispatcher.operations.context import Context
from dispatcher.operations.responses import delete_response, keep_if_wanted, read_response, read_turn
from dispatcher.responses.answer import Event, ResponseEvents, ResponseHead
from dispatcher.responses.items import Item, listed, page_of
from dispatcher.responses.request import Asked, renamed
from dispatcher.strict_json import parse_object
from functions.http_api.callers import context_of, owner_of, tenant_of
from functions.http_api.routes.complete import complete, read_request

PATH = "/v1/responses"


class ResponseForm:
    """One response. `items` are all items that the model reads, those of earlier responses first."""

    def __init__(self, context: Context, tenant: str, head: AnswerHead, asked: Asked, items: Sequence[Item]) -> None:
        self._context, self._tenant = context, tenant
        self._items = listed(items, head.id)
        self._events = ResponseEvents(ResponseHead(head.id, head.created, head.model, asked))
        self._is_open = False

    async def write(self, item: WorkEvent) -> list[bytes]:
        events = self._opening() if isinstance(item, Started | Token | Finished) else []
        if isinstance(item, Token):
            events += self._events.token(item)
        elif isinstance(item, Finished):
            events += self._events.finish(item)
            await self._keep()
            events += self._events.last()
        return [_sse(each) for each in events]

    def failed(self, error: AnsweredError) -> list[bytes]:
        return [_sse(each) for each in [*self._opening(), *self._events.failed(error)]]

    def end(self) -> list[bytes]:
        return []

    async def whole(self, choices: Choices, finished: Finished) -> dict[str, Any]:
        self._events.whole(choices, finished)
        await self._keep()
        return self._events.final

    async def _keep(self) -> None:
        await keep_if_wanted(self._context, self._tenant, self._events.final, self._items)

    def _opening(self) -> list[Event]:
        if self._is_open:
            return []
        self._is_open = True
        return self._events.opening()


async def _create_response(request: Request) -> Response:
    context, tenant = context_of(request), await tenant_of(request)
    key, body = await read_request(request, tenant)
    turn = await read_turn(context, tenant.identity, parse_object(body))
    if turn.items != turn.asked.items:  # it continues a kept response, or refers to items of one
        await context.directory.check_not_deleted(tenant)

    def form(head: AnswerHead) -> ResponseForm:
        return ResponseForm(context, tenant.identity, head, turn.asked, turn.items)

    with renamed(turn.places):
        return await complete(request, tenant, turn.chat, key, form)


async def _get_response(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    _check_query(request.query_params, "include", "include[]", "include_obfuscation")
    record = await read_response(context, tenant.identity, request.path_params["id"])
    return JSONResponse(record.response)


async def _remove_response(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    name = request.path_params["id"]
    await delete_response(context, tenant.identity, name)
    return JSONResponse({"id": name, "object": "response", "deleted": True})


async def _cancel_response(request: Request) -> Response:
    """Refuse to cancel: only a response in the background could be cancelled, and headgate makes none."""
    context, tenant = context_of(request), await owner_of(request)
    await read_response(context, tenant.identity, request.path_params["id"])
    message = (
        "Only a background response can be cancelled, and this one is complete. Close the stream to end one early."
    )
    raise InvalidRequest(message, "id", "not_in_background")


async def _list_input_items(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    record = await read_response(context, tenant.identity, request.path_params["id"])
    return JSONResponse(page_of(record.items, request.query_params))


ROUTES = [
    Route(PATH, _create_response, methods=["POST"]),
    Route(f"{PATH}/{{id}}", _get_response, methods=["GET"]),
    Route(f"{PATH}/{{id}}", _remove_response, methods=["DELETE"]),
    Route(f"{PATH}/{{id}}/cancel", _cancel_response, methods=["POST"]),
    Route(f"{PATH}/{{id}}/input_items", _list_input_items, methods=["GET"]),
]


def _check_query(query: Mapping[str, str], *known: str) -> None:
    """Raise InvalidRequest for other parameters, such as `stream`: a kept response is complete."""
    for name in query:
        if name not in known:
            raise InvalidRequest(f"Unknown parameter: `{name[:100]}`.", name[:100], "unknown_parameter")


def _sse(item: Event) -> bytes:
    data = json.dumps(item, separators=(",", ":"), ensure_ascii=False)
    return f"event: {item['type']}\ndata: {data}\n\n".encode()
