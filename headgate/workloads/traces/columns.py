"""Rows that were found right, read again without a question: what a run of millions of them pays.

About 2 us a row, three quarters of it the making of the Arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from headgate.workloads.arrivals import Arrival
from headgate.workloads.traces.rows import OPTIONAL_COLUMNS, OWN_COLUMNS, timestamp

Rows = Iterable[list[str]]
Names = Mapping[str, str]
T = TypeVar("T")


def own_arrivals(header: Sequence[str], tenants: Iterable[str], renamed: bool, rows: Rows) -> Iterator[Arrival]:
    """`rows` in our format, as traces.rows.CheckedRow.own() has them. `tenants`: all that there are, of which every
    arrival holds the same string; `renamed`: all rows get the only one of them as their tenant.
    """
    tenant = next(iter(tenants)) if renamed else None
    names = {name: name for name in tenants}
    if any(name in header for name in OPTIONAL_COLUMNS):
        return _with_options(header, tenant, names, rows)
    return _plain(header, tenant, names, rows)


def _plain(header: Sequence[str], tenant: str | None, names: Names, rows: Rows) -> Iterator[Arrival]:
    arrival, name, inputs, outputs = (header.index(column) for column in OWN_COLUMNS)
    for values in rows:
        if values:
            yield Arrival(
                float(values[arrival]),
                tenant or names.get(values[name]) or names[values[name].strip()],
                int(values[inputs]),
                int(values[outputs]),
            )


def _with_options(header: Sequence[str], tenant: str | None, names: Names, rows: Rows) -> Iterator[Arrival]:
    columns, absent = len(header), len(header)
    arrival, name, inputs, outputs = (header.index(column) for column in OWN_COLUMNS)
    places = (header.index(column) if column in header else absent for column in OPTIONAL_COLUMNS)
    interaction, stage, app, model, tier, slo, system = places
    for values in rows:
        if not values:
            continue
        values += [""] * (columns + 1 - len(values))
        yield Arrival(
            float(values[arrival]),
            tenant or names.get(values[name]) or names[values[name].strip()],
            int(values[inputs]),
            int(values[outputs]),
            values[interaction].strip() or None,
            _or_none(int, values[stage]),
            values[app].strip() or None,
            values[model].strip() or None,
            values[tier].strip() or None,
            _or_none(float, values[slo]),
            _or_none(int, values[system]) or 0,
        )


def _or_none(convert: Callable[[str], T], value: str) -> T | None:
    return convert(value) if value and not value.isspace() else None


def azure_arrivals(header: Sequence[str], tenant: str, first: datetime, rows: Rows) -> Iterator[Arrival]:
    """`rows` in Azure's format, counted from `first`."""
    when, inputs, outputs = (header.index(column) for column in ("TIMESTAMP", "ContextTokens", "GeneratedTokens"))
    for values in rows:
        if values:
            arrival_s = (timestamp(values[when].strip()) - first).total_seconds()
            yield Arrival(arrival_s, tenant, int(values[inputs]), int(values[outputs]))
