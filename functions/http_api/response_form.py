"""An answer in the form of POST /v1/responses: whole, or as OpenAI's semantic events. It is kept before it ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dispatcher.model.answers import AnswerHead
from dispatcher.model.collected import Choices
from dispatcher.model.errors import AnsweredError
from dispatcher.model.worker_protocol import Finished, Started, Token, WorkEvent
from dispatcher.operations.context import Context
from dispatcher.operations.responses import keep_if_wanted
from dispatcher.responses.answer import ResponseEvents
from dispatcher.responses.items import Item, listed
from dispatcher.responses.output import Event
from dispatcher.responses.request import Asked
from dispatcher.responses.shape import ResponseHead


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


def _sse(item: Event) -> bytes:
    data = json.dumps(item, separators=(",", ":"), ensure_ascii=False)
    return f"event: {item['type']}\ndata: {data}\n\n".encode()
