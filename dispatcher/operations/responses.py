"""Keeps responses for later requests of the same tenant, and finds the responses and items that a request refers to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dispatcher.fields.parse import Parsed, parse
from dispatcher.model.errors import InvalidRequest, StoreUnavailable
from dispatcher.model.kept import CONTENT_BYTES_MAX, KeptResponse
from dispatcher.model.requests import Endpoint
from dispatcher.operations.context import Context
from dispatcher.operations.store_patience import in_time
from dispatcher.responses.items import (
    Item,
    ResponseRecord,
    check_size,
    decode,
    encode,
    is_response_id,
    response_of_item,
)
from dispatcher.responses.request import (
    Asked,
    Places,
    UnknownItem,
    UnknownPreviousResponse,
    UnknownResponse,
    chat_of,
    parse_asked,
    renamed,
)

REFERENCED_MAX = 16
"""The most kept responses that one request may read because of its references. One response has the items of all
earlier responses of its conversation."""
_TOO_LONG = f"It is longer than {CONTENT_BYTES_MAX} bytes, compressed and with its input."
_NO_SPACE = "The tenant's kept responses have used up their space; it becomes free when they expire or are deleted."
_NO_STORE = "The store could not be reached."
_OFF = "This server keeps no responses."


async def read_response(context: Context, tenant: str, response_id: str) -> ResponseRecord:
    """Return a kept response of the tenant. Raises UnknownResponse, StoreUnavailable."""
    record = await _find_record(context, tenant, response_id)
    if record is None:
        raise UnknownResponse(context.settings.responses_kept_s)
    return record


async def delete_response(context: Context, tenant: str, response_id: str) -> None:
    """Delete a kept response of the tenant. Raises UnknownResponse, StoreUnavailable."""
    if not is_response_id(response_id) or not await in_time(context.store.delete_response(tenant, response_id)):
        raise UnknownResponse(context.settings.responses_kept_s)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request for a response: what was asked, and the chat that is submitted for it.

    `items`: all that the model reads, those of earlier responses first. `places`: those of the chat's fields in the
    request.
    """

    asked: Asked
    items: list[Item]
    chat: Parsed
    places: Places


async def read_turn(context: Context, tenant: str, body: Mapping[str, Any]) -> Turn:
    """Return the turn of a body of POST /v1/responses. Raises InvalidRequest and what `conversation` raises."""
    drops = context.settings.unknown_fields == "drop"
    asked = parse_asked(body, drop_unknown=drops)
    earlier, items = await conversation(context, tenant, asked)
    places = Places()
    with renamed(places):
        chat = parse(chat_of(asked, earlier, items, places), Endpoint.CHAT, drop_unknown=drops)
    return Turn(asked, [*earlier, *items], Parsed(chat.request, (*asked.dropped, *chat.dropped)), places)


async def conversation(context: Context, tenant: str, asked: Asked) -> tuple[list[Item], list[Item]]:
    """Return the items of earlier responses, and those of `input` with each reference replaced by its item.

    Raises UnknownPreviousResponse, UnknownItem, RequestTooLarge, InvalidRequest (references into too many responses),
    StoreUnavailable.
    """
    earlier = await _earlier(context, tenant, asked.previous)
    items = await _resolve_references(context, tenant, asked.items)
    check_size([*earlier, *items])
    return earlier, items


async def keep_if_wanted(context: Context, tenant: str, response: dict[str, Any], items: list[Item]) -> None:
    """Keep a whole response if its request wants it (`store`). If that fails, the response says so."""
    if response["store"] and (why_not := await _keep(context, tenant, ResponseRecord(response, items))):
        response |= {"store": False, "not_stored_because": why_not}


async def _keep(context: Context, tenant: str, record: ResponseRecord) -> str:
    """Keep the response. Return why it could not be kept, or the empty text.

    The answer is complete and charged when this is called, so a store that fails does not take it from the caller.
    """
    settings = context.settings
    if not settings.responses_kept_s:
        return _OFF
    content = encode(record)
    if len(content) > CONTENT_BYTES_MAX:
        return _TOO_LONG
    expires_at = context.clock.now() + settings.responses_kept_s
    kept = KeptResponse(tenant, record.response["id"], content, expires_at)
    try:
        is_kept = await in_time(context.store.keep_response(kept, settings.responses_bytes_max))
    except StoreUnavailable:
        return _NO_STORE
    return "" if is_kept else _NO_SPACE


async def _earlier(context: Context, tenant: str, previous: str | None) -> list[Item]:
    """Return the conversation up to the response `previous`."""
    if previous is None:
        return []
    record = await _find_record(context, tenant, previous)
    if record is None:
        raise UnknownPreviousResponse(context.settings.responses_kept_s)
    return record.conversation()


async def _resolve_references(context: Context, tenant: str, items: Sequence[Item]) -> list[Item]:
    references = [(number, item["id"]) for number, item in enumerate(items) if item["type"] == "item_reference"]
    if not references:
        return list(items)
    known = _KnownItems(context, tenant, frozenset(name for _, name in references))
    for number, name in reversed(references):  # the last response of a conversation has the items of all others
        await known.find(name, f"input.{number}.id")
    return [known.items[item["id"]] if item["type"] == "item_reference" else item for item in items]


@dataclass(slots=True)
class _KnownItems:
    """The items to which one request refers, by id, as far as they are found."""

    context: Context
    tenant: str
    wanted: frozenset[str]
    items: dict[str, Item] = field(default_factory=dict)
    _read: set[str] = field(default_factory=set)
    """The ids of the responses that were read."""

    async def find(self, name: str, place: str) -> None:
        """Read the response of an item, unless the item is known. Raises UnknownItem, InvalidRequest."""
        response_id = response_of_item(name)
        if name not in self.items and response_id is not None and response_id not in self._read:
            if len(self._read) >= REFERENCED_MAX:
                raise InvalidRequest(f"`input` refers to the items of more than {REFERENCED_MAX} responses.", "input")
            self._read.add(response_id)
            record = await _find_record(self.context, self.tenant, response_id)
            found = record.conversation() if record is not None else []
            self.items |= {item["id"]: item for item in found if item["id"] in self.wanted}
        if name not in self.items:
            raise UnknownItem(place, self.context.settings.responses_kept_s)


async def _find_record(context: Context, tenant: str, response_id: str) -> ResponseRecord | None:
    if not is_response_id(response_id):
        return None
    kept = await in_time(context.store.response(tenant, response_id))
    return None if kept is None else decode(kept.content)
