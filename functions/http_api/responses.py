"""OpenAI's routes of responses. A response is submitted as a chat, so every engine has it (dispatcher/responses/)."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dispatcher.model.answers import AnswerHead
from dispatcher.model.errors import InvalidRequest
from dispatcher.operations.responses import delete_response, read_response, read_turn
from dispatcher.responses.errors import renamed
from dispatcher.responses.listing import page_of
from dispatcher.strict_json import parse_object
from functions.http_api.callers import context_of, owner_of, tenant_of
from functions.http_api.complete import complete, read_request
from functions.http_api.response_form import ResponseForm

PATH = "/v1/responses"


async def create_response(request: Request) -> Response:
    context, tenant = context_of(request), await tenant_of(request)
    key, body = await read_request(request, tenant)
    turn = await read_turn(context, tenant.identity, parse_object(body))
    if turn.items != turn.asked.items:  # it continues a kept response, or refers to items of one
        await context.directory.check_not_deleted(tenant)

    def form(head: AnswerHead) -> ResponseForm:
        return ResponseForm(context, tenant.identity, head, turn.asked, turn.items)

    with renamed(turn.places):
        return await complete(request, tenant, turn.chat, key, form)


async def get_response(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    _check_query(request.query_params, "include", "include[]", "include_obfuscation")
    record = await read_response(context, tenant.identity, request.path_params["id"])
    return JSONResponse(record.response)


async def remove_response(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    name = request.path_params["id"]
    await delete_response(context, tenant.identity, name)
    return JSONResponse({"id": name, "object": "response", "deleted": True})


async def cancel_response(request: Request) -> Response:
    """Refuse to cancel: only a response in the background could be cancelled, and headgate makes none."""
    context, tenant = context_of(request), await owner_of(request)
    await read_response(context, tenant.identity, request.path_params["id"])
    message = (
        "Only a background response can be cancelled, and this one is complete. Close the stream to end one early."
    )
    raise InvalidRequest(message, "id", "not_in_background")


async def list_input_items(request: Request) -> Response:
    context, tenant = context_of(request), await owner_of(request)
    record = await read_response(context, tenant.identity, request.path_params["id"])
    return JSONResponse(page_of(record.items, request.query_params))


ROUTES = [
    Route(PATH, create_response, methods=["POST"]),
    Route(f"{PATH}/{{id}}", get_response, methods=["GET"]),
    Route(f"{PATH}/{{id}}", remove_response, methods=["DELETE"]),
    Route(f"{PATH}/{{id}}/cancel", cancel_response, methods=["POST"]),
    Route(f"{PATH}/{{id}}/input_items", list_input_items, methods=["GET"]),
]


def _check_query(query: Mapping[str, str], *known: str) -> None:
    """Raise InvalidRequest for other parameters, such as `stream`: a kept response is complete."""
    for name in query:
        if name not in known:
            raise InvalidRequest(f"Unknown parameter: `{name[:100]}`.", name[:100], "unknown_parameter")
