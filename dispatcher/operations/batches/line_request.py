"""The request of one line, and the body of its answer: for the endpoints of chats, and for that of responses."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from dispatcher.fields.parse import parse
from dispatcher.fields.table.batches import ENDPOINTS, RESPONSES
from dispatcher.model.answers import AnswerHead
from dispatcher.model.collected import Choices
from dispatcher.model.errors import InvalidRequest
from dispatcher.model.requests import Request
from dispatcher.model.tenants import Tenant
from dispatcher.model.worker_protocol import Finished
from dispatcher.operations.batches.deferred import deferred_class
from dispatcher.operations.batches.lines import Line, fields_of
from dispatcher.operations.context import Context
from dispatcher.operations.responses import Turn, keep_if_wanted, read_turn
from dispatcher.responses.answer import ResponseEvents
from dispatcher.responses.errors import renamed
from dispatcher.responses.items import listed
from dispatcher.responses.shape import ResponseHead


@dataclass(frozen=True, slots=True)
class LineRequest:
    """`turn`: of a line of the endpoint of responses, which is submitted as a chat; None for the other endpoints."""

    request: Request
    turn: Turn | None = None

    def renamed(self) -> AbstractContextManager[None]:
        """Give an error that passes through the places of the line's own fields."""
        return nullcontext() if self.turn is None else renamed(self.turn.places)

    async def body(
        self, context: Context, tenant: str, head: AnswerHead, choices: Choices, finished: Finished
    ) -> dict[str, Any]:
        """Return the body of the answer. A response is kept, unless its line says `store` false."""
        if self.turn is None:
            return head.body(choices, finished)
        events = ResponseEvents(ResponseHead(head.id, head.created, head.model, self.turn.asked))
        response = events.whole(choices, finished)
        await keep_if_wanted(context, tenant, response, listed(self.turn.items, head.id))
        return response


async def line_request(context: Context, tenant: Tenant, line: Line, endpoint: str) -> LineRequest:
    """Return the request of a line, in the deferred class of its model's pool. Raises InvalidRequest, which names the
    line, and what `read_turn` raises."""
    try:
        return await _line_request(context, tenant, line, endpoint)
    except InvalidRequest as error:
        error.message = f"Line {line.number + 1}: {error.message}"
        raise


async def _line_request(context: Context, tenant: Tenant, line: Line, endpoint: str) -> LineRequest:
    fields, turn = fields_of(line, endpoint), None
    if endpoint == RESPONSES:
        turn = await read_turn(context, tenant.identity, fields)
        request = turn.chat.request
    else:
        request = parse(fields, ENDPOINTS[endpoint], drop_unknown=context.settings.drops_unknown_fields).request
    if request.stream:
        raise InvalidRequest("A line of a batch cannot be streamed: leave out `stream`.", "stream")
    slo_class = deferred_class(await context.pools.serving(request.model), tenant).name
    if request.slo_class not in ("", slo_class):
        message = f"The lines of a batch have the SLO class {slo_class}: leave out `headgate_slo_class`."
        raise InvalidRequest(message, "metadata.headgate_slo_class")
    return LineRequest(replace(request, slo_class=slo_class), turn)
