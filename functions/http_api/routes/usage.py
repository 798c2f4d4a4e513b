"""GET /v1/usage: a tenant's own usage per application and hour, exact to the token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dispatcher.model.errors import InvalidRequest
from dispatcher.model.usage import HOUR_S, UsageRow
from dispatcher.operations.context import Context
from dispatcher.operations.usage import usage_of

_HOURS_DEFAULT = 24
_DAYS_MAX = 31
_HOURS_MAX = 24 * _DAYS_MAX
PARAMETERS = {
    "from": "The first hour: a time in Unix seconds or ISO 8601, UTC if it has no zone. Default: 24 hours before `to`.",
    "to": f"The end, in the same form; at most {_DAYS_MAX} days after `from`. Default: the end of this hour.",
}
_TIME_MAX = 253_402_300_800 - HOUR_S
"""One hour before the year 10000 in Unix seconds: the year in which an hour ends must have four digits."""


async def usage(context: Context, tenant: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the rows of the hours from that of `from` to the last one that begins before `to`, and their totals.

    Both are Unix seconds or ISO 8601, in UTC where no zone is given. Default: the last 24 hours, with the current one.
    Raises InvalidRequest.
    """
    first, last = _hours(query, context.clock.now())
    rows = await usage_of(context, tenant, first, last)
    return {
        "object": "usage",
        "from": _iso(first * HOUR_S),
        "to": _iso((last + 1) * HOUR_S),
        "rows": [{"hour": _iso(row.hour * HOUR_S), "application": row.app, **_figures([row])} for row in rows],
        "totals": _figures(rows),
    }


def _hours(query: Mapping[str, str], now: float) -> tuple[int, int]:
    """Return the first and the last hour."""
    for name in query:
        if name not in PARAMETERS:
            raise InvalidRequest(f"Unknown parameter: `{name[:100]}`.", name[:100], "unknown_parameter")
    until = _seconds(query["to"], "to") if "to" in query else (now // HOUR_S + 1) * HOUR_S
    since = _seconds(query["from"], "from") if "from" in query else max(0.0, until - _HOURS_DEFAULT * HOUR_S)
    first, last = int(since // HOUR_S), math.ceil(until / HOUR_S) - 1
    if first > last:
        raise InvalidRequest("`from` must be before `to`.", "from")
    if last - first >= _HOURS_MAX:
        raise InvalidRequest(f"`from` is at most {_DAYS_MAX} days before `to`.", "from")
    return first, last


def _seconds(text: str, param: str) -> float:
    """Return a time in Unix seconds. Raises InvalidRequest."""
    try:
        seconds = float(text) if text.isascii() and text.isdecimal() else _of_iso(text)
    except (ValueError, OverflowError):
        raise InvalidRequest(f"`{param}` is a time in Unix seconds or ISO 8601.", param) from None
    if not 0 <= seconds < _TIME_MAX:
        raise InvalidRequest(f"`{param}` is a time between the years 1970 and 9999.", param)
    return seconds


def _of_iso(text: str) -> float:
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()


def _iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _figures(rows: Sequence[UsageRow]) -> dict[str, float]:
    return {
        "requests": sum(row.requests for row in rows),
        "input_tokens": sum(row.input_tokens for row in rows),
        "output_tokens": sum(row.output_tokens for row in rows),
        "service": sum(row.service for row in rows),
        "cached_tokens": sum(row.cached_tokens for row in rows),
    }
