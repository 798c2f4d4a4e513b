"""`headgate usage` prints each tenant's tokens and service per application and hour, exact to the token."""

from __future__ import annotations

import csv
import json as json_module
import math
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dispatcher.model.tenants import has_id, is_named, name_of
from dispatcher.model.usage import HOUR_S, UsageRow
from dispatcher.monitor.follower import open_followers, usage_rows
from dispatcher.ports import Store
from dispatcher.processes.bootstrap import RealClock
from dispatcher.settings.config import Config
from dispatcher.stores.layout import USAGE_KEEP_S
from headgate.cli.terminal.gate_store import Data, with_store

_COLUMNS = (
    "hour",
    "tenant",
    "application",
    "requests",
    "input_tokens",
    "output_tokens",
    "service",
    "cached_tokens",
    "identity",
)
_DEFAULT_SPAN_S = 24 * HOUR_S
_MOMENT = "2026-11-22, 2026-11-22T10 or 2026-11-22T10:30, in UTC"
"""The same forms as in GET /v1/usage."""


def usage(
    data: Data = None,
    tenant: Annotated[str | None, typer.Option(help="One tenant, also a deleted one: its name or identity.")] = None,
    start: Annotated[
        str | None, typer.Option("--from", help=f"Count from this hour on: {_MOMENT}; default: 24 hours before --to.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", help="Count the hours that begin before it; default: with the current hour.")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print tokens and service per tenant, application and hour, of all pools together, exact to the token."""
    if as_csv and json:
        raise typer.BadParameter("--csv and --json do not go together")
    hours = _hours(start, end, RealClock().now())

    async def run(store: Store, config: Config) -> Sequence[UsageRow]:
        if hours[0] > hours[1]:
            return []
        followers = [each for pool in config.each_pool() for each in open_followers(store, pool, RealClock())]
        identity = tenant if tenant is not None and has_id(tenant) else None
        rows = await usage_rows(store, followers, identity, *hours)
        return [row for row in rows if tenant is None or is_named(row.tenant, tenant)]

    rows = with_store(data, run)
    if as_csv:
        _csv(rows)
    elif json:
        cells = [dict(zip(_COLUMNS, _values(row), strict=True)) for row in rows]
        sys.stdout.write(json_module.dumps({"usage": cells}) + "\n")
    else:
        _table(rows)


def _hours(start: str | None, end: str | None, now: float) -> tuple[int, int]:
    """Return the first and the last hour (Unix seconds // 3600). `now`: Unix seconds.

    Hours without possible usage are left out: older usage is deleted, and later hours have not begun. This saves reads,
    because DynamoDB's table is read day by day. If no hour is left, the last hour is below the first one.
    """
    until = (now // HOUR_S + 1) * HOUR_S if end is None else _seconds(end, "--to")
    since = until - _DEFAULT_SPAN_S if start is None else _seconds(start, "--from")
    first, last = int(since // HOUR_S), math.ceil(until / HOUR_S) - 1
    if first > last:
        raise typer.BadParameter("--from must be before --to")
    return max(first, int((now - USAGE_KEEP_S) // HOUR_S)), min(last, int(now // HOUR_S) + 1)


def _seconds(text: str, option: str) -> float:
    """Parse a time, in UTC if it has no zone. Raises BadParameter."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{option}: {text[:40]!r} is not a time; give {_MOMENT}") from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _values(row: UsageRow) -> tuple[str, str, str, int, int, int, float, int, str]:
    hour = datetime.fromtimestamp(row.hour * HOUR_S, UTC).strftime("%Y-%m-%dT%H:00:00Z")
    counts = row.requests, row.input_tokens, row.output_tokens, row.service, row.cached_tokens
    return hour, name_of(row.tenant), row.app, *counts, row.tenant


def _csv(rows: Sequence[UsageRow]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows(_values(row) for row in rows)


def _table(rows: Sequence[UsageRow]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    headings = ("hour (UTC)", "tenant", "application", "requests", "input", "of it cached", "output", "service")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number > 2 else "left", overflow="fold")
    for row in rows:
        hour = datetime.fromtimestamp(row.hour * HOUR_S, UTC).strftime("%Y-%m-%d %H:00")
        table.add_row(hour, row.tenant, row.app, *_counts([row]))
    table.add_section()
    table.add_row("total", "", "", *_counts(rows))
    Console().print(table)


def _counts(rows: Sequence[UsageRow]) -> list[str]:
    read = (sum(row.input_tokens for row in rows), sum(row.cached_tokens for row in rows))
    tokens = (*read, sum(row.output_tokens for row in rows))
    sums = (sum(row.requests for row in rows), *tokens, round(sum(row.service for row in rows)))
    return [f"{value:,}" for value in sums]
