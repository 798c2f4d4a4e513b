"""Input items as they are kept and listed: each has an id and a status, and a message's content is a list. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dispatcher.model.errors import RequestTooLarge
from dispatcher.responses.ids import input_id

Item = dict[str, Any]
CONVERSATION_BYTES_MAX = 1_500_000
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
        if size > CONVERSATION_BYTES_MAX:  # at once: many references to one long item are short in the request
            raise RequestTooLarge(
                f"The conversation has more than {CONVERSATION_BYTES_MAX:,} bytes, with the earlier responses. "
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
