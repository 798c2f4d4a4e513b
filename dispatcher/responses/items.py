"""The items of a response: their ids, how they are kept, and how they are listed. Pure.

resp_<call>        a response
msg_<call>_<n>     an output item: a message (`fc` a function call, `rs` reasoning)
msg_<call>_i<n>    an input item without an id of its own (`fco` is the output of a function call)

Each id has the id of its call, so an item leads to its response. A listed item has an id and a status, and a message's
content is a list.

A kept response is compressed JSON of the response and of all items that the model read before it. The record of a
response with `previous_response_id` contains the items of the earlier ones too. So it is complete when they have
expired, and a conversation of any length is one read.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.model.errors import InvalidRequest, RequestTooLarge

Item = dict[str, Any]
_CONVERSATION_BYTES_MAX = 1_500_000
"""The most bytes of all items that a model reads for one response. A worker accepts an order of 2,000,000 bytes, and a
request's body has at most 1,000,000; earlier responses add to it."""
_OVERHEAD_BYTES = 4
"""Quotes and commas around a text."""


def as_items(value: str | list[Item]) -> list[Item]:
    """Return the `input` of a request as items."""
    return [{"type": "message", "role": "user", "content": value}] if isinstance(value, str) else value


def with_types(value: Any) -> Any:
    """Return an `input` in which a reference has its type: OpenAI allows `{"id": …}` alone."""
    if not isinstance(value, list):
        return value
    return [{"type": "item_reference", **item} if _is_bare_reference(item) else item for item in value]


def check_size(items: Iterable[Item]) -> None:
    """Raise RequestTooLarge if the items are too long together. A reference counts as the item that it names."""
    size = 0
    for text in _texts(list(items)):
        size += len(text.encode()) + _OVERHEAD_BYTES
        if size > _CONVERSATION_BYTES_MAX:  # at once: many references to one long item are short in the request
            raise RequestTooLarge(
                f"The conversation has more than {_CONVERSATION_BYTES_MAX:,} bytes, with the earlier responses. "
                "Begin a new one, or send less.",
                "input",
            )


def listed(items: Sequence[Item], call_id: str) -> list[Item]:
    """Return the items as the API shows them. An item without an id of its own gets one."""
    return [_listed_item(item, call_id, number) for number, item in enumerate(items)]


def _listed_item(item: Item, call_id: str, number: int) -> Item:
    kind = item["type"]
    shown = {**item, "id": item.get("id") or input_id(kind, call_id, number)}
    if kind == "reasoning":
        return {"summary": [], **shown}
    if kind == "message" and isinstance(item["content"], str):
        part: Item = {"type": "input_text", "text": item["content"]}
        if item["role"] == "assistant":
            part = {"type": "output_text", "text": item["content"], "annotations": []}
        shown["content"] = [part]
    elif kind == "message":
        shown["content"] = [_part(part) for part in item["content"]]
    return {**shown, "status": "completed"}


def _part(part: Item) -> Item:
    if part["type"] == "output_text":
        return {"annotations": [], **part}
    return {"detail": "auto", **part} if part["type"] == "input_image" else part


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts and the names in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield name
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _is_bare_reference(item: Any) -> bool:
    return isinstance(item, Mapping) and {name for name, value in item.items() if value is not None} == {"id"}


_CALL = r"[A-Za-z0-9.]{1,64}-[0-9a-z]{1,20}"
_RESPONSE = re.compile(rf"resp_({_CALL})")
_ITEM = re.compile(rf"[a-z]+_({_CALL})_i?[0-9]{{1,6}}")
_PREFIX = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def response_id(call_id: str) -> str:
    return f"resp_{call_id}"


def is_response_id(name: str) -> bool:
    return _RESPONSE.fullmatch(name) is not None


def output_id(kind: str, call_id: str, index: int) -> str:
    """Return the id of an output item. `kind` is its type."""
    return f"{_PREFIX[kind]}_{call_id}_{index}"


def input_id(kind: str, call_id: str, index: int) -> str:
    """Return the id of an input item. `kind` is its type."""
    return f"{_PREFIX[kind]}_{call_id}_i{index}"


def response_of_item(item_id: str) -> str | None:
    """Return the id of the response that an item belongs to, or None if the id is not one of headgate's."""
    found = _ITEM.fullmatch(item_id)
    return None if found is None else response_id(found[1])


_LIMIT_DEFAULT, _LIMIT_MAX = 20, 100
_KNOWN = ("after", "limit", "order", "include", "include[]")
"""`include` changes nothing: the items have all that there is."""


def page_of(items: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """Return the page that the query asks for: `limit` items after the item `after`, newest first unless `order` is
    "asc". Raises InvalidRequest."""
    for name in query:
        if name not in _KNOWN:
            raise InvalidRequest(f"Unknown parameter: `{name[:100]}`.", name[:100], "unknown_parameter")
    rest, limit = _after(_order_items(items, query.get("order", "desc")), query.get("after")), _limit(query)
    page = list(rest[:limit])
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else "",
        "last_id": page[-1]["id"] if page else "",
        "has_more": len(rest) > limit,
    }


def _order_items(items: Sequence[Mapping[str, Any]], order: str) -> Sequence[Mapping[str, Any]]:
    if order not in ("asc", "desc"):
        raise InvalidRequest("`order` is asc or desc.", "order")
    return items if order == "asc" else items[::-1]


def _after(items: Sequence[Mapping[str, Any]], name: str | None) -> Sequence[Mapping[str, Any]]:
    if name is None:
        return items
    for number, item in enumerate(items):
        if item["id"] == name:
            return items[number + 1 :]
    raise InvalidRequest("The response has no input item with the id in `after`.", "after")


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", str(_LIMIT_DEFAULT))
    if not (text.isascii() and text.isdecimal() and len(text) <= 3 and 1 <= int(text) <= _LIMIT_MAX):
        raise InvalidRequest(f"`limit` is a number from 1 to {_LIMIT_MAX}.", "limit")
    return int(text)


_LEVEL = 1
"""The fastest compression. A chat becomes three to five times shorter, 1 MB of it in about 10 ms."""


@dataclass(frozen=True, slots=True)
class ResponseRecord:
    response: dict[str, Any]
    """The response as the caller got it."""
    items: list[Item]
    """The input items, those of earlier responses first. Each has an id."""

    def conversation(self) -> list[Item]:
        """Return all items, the response's own output last."""
        return [*self.items, *self.response["output"]]


def encode(record: ResponseRecord) -> bytes:
    text = json.dumps({"response": record.response, "items": record.items}, separators=(",", ":"), ensure_ascii=False)
    return zlib.compress(text.encode(), _LEVEL)


def decode(content: bytes) -> ResponseRecord:
    """Return the record of `encode`."""
    fields = json.loads(zlib.decompress(content))
    return ResponseRecord(fields["response"], fields["items"])
