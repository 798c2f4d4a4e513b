"""Traces as files: our CSV format, and Azure's as it is published. Streamed, however large.

Ours:    arrival_s,tenant,input_tokens,output_tokens and optionally
         interaction,stage,app,model,tier,slo_ttft_ms,system_tokens
Azure's: TIMESTAMP,ContextTokens,GeneratedTokens, one file a tenant, arrival counted from its earliest row
         (Azure LLM inference traces 2023)

A file is read once to check every row (scan_trace), which finds what is wrong with it by line and column, and then as
often as somebody iterates over the Trace, row by row, without being held. Only rows out of order of time are sorted in
memory, up to SORTED_ROWS_MAX of them.
"""

from __future__ import annotations

import csv
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import attrgetter
from pathlib import Path

from headgate.workloads.arrivals import Arrival, TraceError
from headgate.workloads.traces.columns import azure_arrivals, own_arrivals
from headgate.workloads.traces.rows import (
    OPTIONAL_COLUMNS,
    OWN_COLUMNS,
    TENANT_CHARS_MAX,
    TOKENS_MAX,
    CheckedRow,
    header_of,
    is_azure,
    numbered_rows,
)

__all__ = [
    "OPTIONAL_COLUMNS",
    "OWN_COLUMNS",
    "TENANT_CHARS_MAX",
    "TOKENS_MAX",
    "Arrival",
    "Trace",
    "TraceError",
    "read_trace",
    "scan_trace",
]

SORTED_ROWS_MAX = 1_000_000
"""Rows out of order are held to be sorted: about 200 MB of them."""
LISTED_ROWS_MAX = 5_000_000
"""Of read_trace, which makes a list."""
TENANTS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Trace:
    """A file whose every row was found right. Iterating reads it again, in order of time.

    `first`: the time that Azure's rows are counted from, None for ours. `unordered_line`: the first row that is earlier
    than one above it. Raises TraceError in iterating where the file is not the one that was checked.
    """

    path: Path
    tenant: str | None
    header: tuple[str, ...]
    first: datetime | None
    requests: int
    last_arrival_s: float
    tenants: tuple[str, ...]
    unordered_line: int | None
    identity: tuple[int, int]

    def __iter__(self) -> Iterator[Arrival]:
        if self.unordered_line is not None:
            return iter(sorted(self._stream(), key=attrgetter("arrival_s")))
        return self._stream()

    def counted_from(self, first: datetime) -> Trace:
        """The same rows of Azure's on another clock."""
        if self.first is None:
            return self
        last_s = (self.first - first + timedelta(seconds=self.last_arrival_s)).total_seconds()
        return replace(self, first=first, last_arrival_s=last_s)

    def _stream(self) -> Iterator[Arrival]:
        try:
            with self.path.open(encoding="utf-8-sig", newline="\n") as file:
                if _identity(file.fileno()) != self.identity:
                    raise TraceError(f"{self.path}: has changed since it was checked")
                rows = csv.reader(file, strict=True)
                next(rows)
                yield from self._arrivals(rows)
        except OSError as error:
            raise TraceError(f"{self.path}: {error.strerror or 'cannot be read'}") from None
        except (ValueError, LookupError, csv.Error):
            raise TraceError(f"{self.path}: has changed since it was checked") from None

    def _arrivals(self, rows: Iterator[list[str]]) -> Iterator[Arrival]:
        if self.first is None:
            return own_arrivals(self.header, self.tenants, self.tenant is not None, rows)
        return azure_arrivals(self.header, self.tenants[0], self.first, rows)


def read_trace(path: Path, *, tenant: str | None = None) -> list[Arrival]:
    """All arrivals, in order of time. `tenant` names the one of Azure's file, and renames those of ours.

    Raises TraceError.
    """
    trace = scan_trace(path, tenant=tenant)
    if trace.requests > LISTED_ROWS_MAX:
        raise TraceError(f"{path}: {trace.requests} rows, more than the {LISTED_ROWS_MAX} that can be held at once")
    return list(trace)


def scan_trace(path: Path, *, tenant: str | None = None, seen: Callable[[Arrival], None] | None = None) -> Trace:
    """Reads the whole file to check it, holding none of it. `tenant` as in read_trace(). Raises TraceError.

    `seen` is told of every row in the order of the file; those of Azure's count from its first row there.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise TraceError(f"{path}: is no regular file, and a trace is read more than once")
        with path.open("rb") as file:
            rows = numbered_rows(path, file)
            header = header_of(path, next(rows, (1, []))[1])
            scan = _AzureScan(path, header, tenant) if is_azure(header) else _Scan(path, header, tenant)
            for line, values in rows:
                if values:
                    arrival = scan.take(line, values)
                    if seen is not None:
                        seen(arrival)
            return scan.result(_identity(file.fileno()))
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or 'cannot be read'}") from None


class _Scan:
    """What is kept of the rows while they are checked."""

    def __init__(self, path: Path, header: tuple[str, ...], tenant: str | None) -> None:
        self._path = path
        self._header = header
        self._tenant = tenant
        self._row = CheckedRow(path, header)
        self._requests = 0
        self._earliest_s = self._latest_s = 0.0
        self._tenants: dict[str, None] = {}
        self._unordered_line: int | None = None

    def take(self, line: int, values: list[str]) -> Arrival:
        self._row.take(line, values)
        arrival = self._arrival()
        if not self._requests:
            self._earliest_s = self._latest_s = arrival.arrival_s
        elif arrival.arrival_s < self._latest_s:
            self._unordered_line = self._unordered_line or line
            self._earliest_s = min(self._earliest_s, arrival.arrival_s)
        self._latest_s = max(self._latest_s, arrival.arrival_s)
        self._requests += 1
        if arrival.tenant not in self._tenants:
            self._meet(arrival.tenant)
        if self._unordered_line is not None and self._requests > SORTED_ROWS_MAX:
            raise TraceError(
                f"{self._path}, line {self._unordered_line}, column {self._row.time_column!r}: is earlier than a row "
                f"above it, and a trace of more than {SORTED_ROWS_MAX} rows must be in order of time"
            )
        return arrival

    def _arrival(self) -> Arrival:
        return self._row.own(self._tenant)

    def _meet(self, tenant: str) -> None:
        if len(self._tenants) == TENANTS_MAX:
            raise self._row.wrong("tenant", f"is one tenant more than the {TENANTS_MAX} that a trace may have")
        self._tenants[tenant] = None

    def result(self, identity: tuple[int, int]) -> Trace:
        if not self._requests:
            raise TraceError(f"{self._path}: no requests in it")
        return Trace(
            self._path,
            self._tenant,
            self._header,
            None,
            self._requests,
            self._latest_s,
            tuple(self._tenants),
            self._unordered_line,
            identity,
        )


class _AzureScan(_Scan):
    """Rows are counted from the first until the earliest is known."""

    _first: datetime | None = None

    def _arrival(self) -> Arrival:
        if self._first is None:
            self._first = self._row.timestamp()
        return self._row.azure(self._tenant or self._path.stem, self._first)

    def result(self, identity: tuple[int, int]) -> Trace:
        checked = super().result(identity)
        if self._first is None:
            return checked
        earliest, latest = timedelta(seconds=self._earliest_s), timedelta(seconds=self._latest_s)
        return replace(checked, first=self._first + earliest, last_arrival_s=(latest - earliest).total_seconds())


def _identity(file: int) -> tuple[int, int]:
    """Size and time of the last change: tells a file from what became of it."""
    status = os.fstat(file)
    return status.st_size, status.st_mtime_ns
