"""Traces as files, streamed however large they are.

headgate's format: arrival_s,tenant,input_tokens,output_tokens and optionally
                   interaction,stage,app,model,tier,slo_ttft_ms,system_tokens,slo_class
Azure's format:    TIMESTAMP,ContextTokens,GeneratedTokens, one file per tenant; arrivals count from the earliest row
                   (Azure LLM inference traces 2023)

scan_trace() reads a file once and checks every row. Each iteration over the Trace reads the file again, row by row.
Only rows that are not in order of time are sorted in memory, up to SORTED_ROWS_MAX of them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO

from headgate.workloads.arrivals import Arrival, TraceError
from headgate.workloads.traces.rows import Rows

SORTED_ROWS_MAX = 1_000_000
"""Rows that can be sorted: about 200 MB of them."""
LISTED_ROWS_MAX = 5_000_000
"""Rows that read_trace() puts in a list."""
TENANTS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Trace:
    """A file of which every row was checked. Iterating reads it again, in order of time.

    `tenant`: as in scan_trace(). `first`: the time from which arrivals of Azure's format count; None for headgate's.
    `unordered_line`: the first row that is earlier than a row above it. Iterating raises TraceError if the file is not
    the checked one.
    """

    path: Path
    tenant: str | None
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
        """Return the same rows of Azure's format, counted from another time."""
        if self.first is None:
            return self
        last_s = (self.first - first + timedelta(seconds=self.last_arrival_s)).total_seconds()
        return replace(self, first=first, last_arrival_s=last_s)

    def _stream(self) -> Iterator[Arrival]:
        try:
            with self.path.open("rb") as file:
                if _identity(file) != self.identity:
                    raise TraceError(f"{self.path}: has changed since it was checked")
                yield from Rows(self.path, file, self.tenant, self.first)
        except OSError as error:
            raise _unreadable(self.path, error) from None


def read_trace(path: Path, *, tenant: str | None = None) -> list[Arrival]:
    """Return all arrivals in order of time. `tenant` as in scan_trace(). Raises TraceError."""
    trace = scan_trace(path, tenant=tenant)
    if trace.requests > LISTED_ROWS_MAX:
        raise TraceError(f"{path}: {trace.requests} rows, more than the {LISTED_ROWS_MAX} that can be held at once")
    return list(trace)


def scan_trace(path: Path, *, tenant: str | None = None) -> Trace:
    """Read the whole file to check it, without holding it. Raises TraceError.

    `tenant`: the tenant of a file of Azure's, by default the file's name; it replaces the tenants of headgate's format.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise TraceError(f"{path}: is no regular file, and a trace is read more than once")
        with path.open("rb") as file:
            rows = Rows(path, file, tenant)
            scan = _Scan(path, rows)
            for arrival in rows:
                scan.take(arrival)
            return scan.result(tenant, _identity(file))
    except OSError as error:
        raise _unreadable(path, error) from None


class _Scan:
    """What is kept of the rows while they are checked."""

    def __init__(self, path: Path, rows: Rows) -> None:
        self._path = path
        self._rows = rows
        self._requests = 0
        self._earliest_s = self._latest_s = 0.0
        self._tenants: dict[str, None] = {}
        self._unordered_line: int | None = None

    def take(self, arrival: Arrival) -> None:
        if not self._requests:
            self._earliest_s = self._latest_s = arrival.arrival_s
        elif arrival.arrival_s < self._latest_s:
            self._unordered_line = self._unordered_line or self._rows.row.line
            self._earliest_s = min(self._earliest_s, arrival.arrival_s)
        self._latest_s = max(self._latest_s, arrival.arrival_s)
        self._requests += 1
        if arrival.tenant not in self._tenants:
            self._add_tenant(arrival.tenant)
        if self._unordered_line is not None and self._requests > SORTED_ROWS_MAX:
            raise TraceError(
                f"{self._path}, line {self._unordered_line}, column {self._rows.row.time_column!r}: is earlier than a "
                f"row above it, and a trace of more than {SORTED_ROWS_MAX} rows must be in order of time"
            )

    def _add_tenant(self, tenant: str) -> None:
        if len(self._tenants) == TENANTS_MAX:
            raise self._rows.row.wrong("tenant", f"is one tenant more than the {TENANTS_MAX} that a trace may have")
        self._tenants[tenant] = None

    def result(self, tenant: str | None, identity: tuple[int, int]) -> Trace:
        if not self._requests:
            raise TraceError(f"{self._path}: no requests in it")
        first, last_s = self._rows.first, self._latest_s
        if first is not None:
            first += timedelta(seconds=self._earliest_s)
            last_s = (timedelta(seconds=last_s) - timedelta(seconds=self._earliest_s)).total_seconds()
        return Trace(
            path=self._path,
            tenant=tenant,
            first=first,
            requests=self._requests,
            last_arrival_s=last_s,
            tenants=tuple(self._tenants),
            unordered_line=self._unordered_line,
            identity=identity,
        )


def _identity(file: BinaryIO) -> tuple[int, int]:
    """Return size and time of the last change: both differ once the file has changed."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def _unreadable(path: Path, error: OSError) -> TraceError:
    return TraceError(f"{path}: {error.strerror or 'cannot be read'}")
