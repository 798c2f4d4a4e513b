"""Pages of a tenant's files and batches, as OpenAI's lists. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from dispatcher.model.errors import InvalidRequest


class Listed(Protocol):
    @property
    def id(self) -> str: ...

    def body(self) -> dict[str, Any]: ...


T = TypeVar("T", bound=Listed)


def page(newest_first: Sequence[T], query: Mapping[str, str], *, usual: int, most: int) -> dict[str, Any]:
    """Return the page that the query asks for: `limit` (`usual`, at most `most`) objects after the one named `after`,
    the newest first unless `order` is "asc". Raises InvalidRequest."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("`order` is asc or desc.", "order")
    listed = newest_first if order == "desc" else newest_first[::-1]
    after, limit = query.get("after"), _limit(query.get("limit"), usual, most)
    if after is not None:
        # The object may have expired since the page before. Ids are in order of creation, so the next ones are known.
        listed = [each for each in listed if (each.id < after if order == "desc" else each.id > after)]
    chosen = listed[:limit]
    return {
        "object": "list",
        "data": [each.body() for each in chosen],
        "first_id": chosen[0].id if chosen else None,
        "last_id": chosen[-1].id if chosen else None,
        "has_more": len(listed) > limit,
    }


def _limit(text: str | None, usual: int, most: int) -> int:
    if text is None:
        return usual
    if not (text.isascii() and text.isdecimal() and len(text) <= 6 and 1 <= int(text) <= most):
        raise InvalidRequest(f"`limit` is a number from 1 to {most}.", "limit")
    return int(text)
