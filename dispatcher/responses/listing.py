"""Pages of the input items of a response, as OpenAI's lists. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dispatcher.model.errors import InvalidRequest

LIMIT_DEFAULT, LIMIT_MAX = 20, 100
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
    text = query.get("limit", str(LIMIT_DEFAULT))
    if not (text.isascii() and text.isdecimal() and len(text) <= 3 and 1 <= int(text) <= LIMIT_MAX):
        raise InvalidRequest(f"`limit` is a number from 1 to {LIMIT_MAX}.", "limit")
    return int(text)
