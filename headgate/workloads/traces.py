"""Traces as files, streamed however large they are.

headgate's format: arrival_s,tenant,input_tokens,output_tokens and optionally
                   interaction,stage,app,model,tier,slo_ttft_ms,system_tokens,slo_class
Azure's format:    TIMESTAMP,ContextTokens,GeneratedTokens, one file per tenant; arrivals count from the earliest row
                   (Azure LLM inference traces 2023)
Mooncake's format: a .jsonl file with hashes of the prompts' blocks (prefix_rows.py)

scan_trace() reads a file once and checks every row. Each iteration over the Trace reads the file again, row by row.
Only rows that are not in order of time are sorted in memory, up to SORTED_ROWS_MAX of them.

The rows are checked and read as arrivals. Each error is one sentence that names file, line and column.
"""

from __future__ import annotations

import csv
import math
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO

from dispatcher.policies.tiers import TENANT_TIERS
from headgate.workloads.arrivals import TENANT_CHARS_MAX, TOKENS_MAX, Arrival, TraceError
from headgate.workloads.prefix_rows import PrefixRows

_OWN_COLUMNS = ("arrival_s", "tenant", "input_tokens", "output_tokens")
_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
LINE_BYTES_MAX = 65_536
"""Without it, a file without line ends would be read into memory whole."""


class Rows:
    """One pass over a trace: iterating yields its arrivals in the order of the file. Raises TraceError.

    `tenant`: the tenant of a file of Azure's, by default the file's name; it replaces the tenants of headgate's format.
    `first`: the time from which arrivals of Azure's format count, by default that of the first row.
    """

    def __init__(self, path: Path, file: BinaryIO, tenant: str | None, first: datetime | None = None) -> None:
        self._numbered_rows = numbered_rows(path, file)
        header = _header(path, next(self._numbered_rows, (1, []))[1])
        self._tenant = tenant or (path.stem if _is_azure(header) else None)
        self.row = CheckedRow(path, header)
        self.first = first

    def __iter__(self) -> Iterator[Arrival]:
        for line, values in self._numbered_rows:
            if values:
                self.row.take(line, values)
                yield self._arrival()

    def _arrival(self) -> Arrival:
        if self.row.time_column == "arrival_s":
            return self.row.own(self._tenant)
        if self.first is None:
            self.first = self.row.timestamp()
        return self.row.azure(self._tenant or "", self.first)


def numbered_rows(path: Path, file: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    """Yield each row with the number of its last line: a quoted value may contain line ends."""
    reader = csv.reader(_lines(path, file), strict=True)
    try:
        for values in reader:
            yield reader.line_num, values
    except csv.Error as error:
        raise TraceError(f"{path}, line {reader.line_num}: not CSV ({error})") from None


def _lines(path: Path, file: BinaryIO) -> Iterator[str]:
    """Yield lines as text, without the byte order mark that spreadsheets write."""
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise TraceError(f"{path}, line {number}: longer than {LINE_BYTES_MAX} bytes")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise TraceError(f"{path}, line {number}: not UTF-8 text") from None


def _header(path: Path, names: Sequence[str]) -> tuple[str, ...]:
    header = tuple(name.strip() for name in names)
    for name in header:
        if name and header.count(name) > 1:
            raise TraceError(f"{path}, line 1: column {name!r} appears twice")
    missing = [name for name in (_AZURE_COLUMNS if _is_azure(header) else _OWN_COLUMNS) if name not in header]
    if missing:
        raise TraceError(f"{path}, line 1: column {missing[0]!r} is missing (found: {', '.join(header) or 'nothing'})")
    return header


def _is_azure(header: Sequence[str]) -> bool:
    return "TIMESTAMP" in header


class CheckedRow:
    """The current row, by the names of its columns. Every method raises TraceError."""

    def __init__(self, path: Path, header: Sequence[str]) -> None:
        self._path = path
        self._places = {name: place for place, name in enumerate(header)}
        self._columns = len(header)
        self._values: Sequence[str] = ()
        self._tenants: dict[str, str] = {}
        self.time_column = "TIMESTAMP" if _is_azure(header) else "arrival_s"
        self.line = 1

    def take(self, line: int, values: Sequence[str]) -> None:
        """Make the given row the current one."""
        self.line = line
        self._values = values
        if len(values) > self._columns:
            raise TraceError(f"{self._path}, line {line}: {len(values)} values for {self._columns} columns")

    def wrong(self, column: str, what: str) -> TraceError:
        value = self._raw(column)[:40]
        return TraceError(f"{self._path}, line {self.line}, column {column!r}: {value!r} {what}")

    def azure(self, tenant: str, first: datetime) -> Arrival:
        """Return the arrival, counted from `first`; a row can be earlier than that."""
        arrival_s = (self.timestamp() - first).total_seconds()
        return Arrival(arrival_s, tenant, self.tokens("ContextTokens"), self.tokens("GeneratedTokens"))

    def own(self, tenant: str | None) -> Arrival:
        """Return the arrival of a row in headgate's format; `tenant` replaces the row's tenant."""
        arrival_s, named = self.number("arrival_s"), tenant or self.tenant()
        input_tokens, output_tokens = self.tokens("input_tokens"), self.tokens("output_tokens")
        if self._columns == len(_OWN_COLUMNS):
            return Arrival(arrival_s, named, input_tokens, output_tokens)
        return Arrival(
            arrival_s=arrival_s,
            tenant=named,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            interaction=self.optional("interaction"),
            stage=self.tokens("stage") if self.optional("stage") else None,
            app=self.optional("app"),
            model=self.optional("model"),
            tier=self.tier(),
            slo_ttft_ms=self.number("slo_ttft_ms") if self.optional("slo_ttft_ms") else None,
            system_tokens=self.system_tokens(input_tokens) if self.optional("system_tokens") else 0,
            slo_class=self.optional("slo_class"),
        )

    def timestamp(self) -> datetime:
        """Return the time in UTC. The traces of 2023 name no zone; those of 2024 do."""
        try:
            when = datetime.fromisoformat(self.text("TIMESTAMP"))
        except ValueError:
            raise self.wrong("TIMESTAMP", "is not a timestamp") from None
        return when.replace(tzinfo=UTC) if when.tzinfo is None else when

    def tenant(self) -> str:
        """Return the tenant. All rows of a tenant have the same string in memory."""
        name = self.text("tenant")
        if len(name) > TENANT_CHARS_MAX:
            raise self.wrong("tenant", f"is the start of a name of more than {TENANT_CHARS_MAX} characters")
        return self._tenants.setdefault(name, name)

    def system_tokens(self, input_tokens: int) -> int:
        tokens = self.tokens("system_tokens")
        if tokens > input_tokens:
            raise self.wrong("system_tokens", f"is more than the {input_tokens} input tokens that it is part of")
        return tokens

    def tier(self) -> str | None:
        value = self.optional("tier")
        if value is not None and value not in TENANT_TIERS:
            raise self.wrong("tier", f"is no tier: there are {', '.join(TENANT_TIERS)}")
        return value

    def number(self, column: str) -> float:
        try:
            value = float(self._plain(column))
        except ValueError:
            raise self.wrong(column, "is not a number") from None
        if not 0.0 <= value < math.inf:
            raise self.wrong(column, "is not a time of zero or more")
        return value

    def tokens(self, column: str) -> int:
        try:
            value = int(self._plain(column))
        except ValueError:
            raise self.wrong(column, "is not a whole number") from None
        if not 0 <= value <= TOKENS_MAX:
            raise self.wrong(column, f"is not between 0 and {TOKENS_MAX}")
        return value

    def _plain(self, column: str) -> str:
        """Return a number's text. Python also reads 1_000 and digits of other scripts; other programs do not."""
        value = self.text(column)
        if "_" in value or not value.isascii():
            raise ValueError(value)
        return value

    def text(self, column: str) -> str:
        value = self.optional(column)
        if value is None:
            raise self.wrong(column, "is empty")
        return value

    def optional(self, column: str) -> str | None:
        return self._raw(column).strip() or None

    def _raw(self, column: str) -> str:
        place = self._places.get(column, self._columns)
        return self._values[place] if place < len(self._values) else ""


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
                yield from _open_rows(self.path, file, self.tenant, self.first)
        except OSError as error:
            raise unreadable(self.path, error) from None


def read_trace(path: Path, *, tenant: str | None = None) -> list[Arrival]:
    """Return all arrivals in order of time. `tenant` as in scan_trace(). Raises TraceError."""
    trace = scan_trace(path, tenant=tenant)
    if trace.requests > LISTED_ROWS_MAX:
        raise TraceError(f"{path}: {trace.requests} rows, more than the {LISTED_ROWS_MAX} that can be held at once")
    return list(trace)


def scan_trace(path: Path, *, tenant: str | None = None) -> Trace:
    """Read the whole file to check it, without holding it. Raises TraceError.

    `tenant`: the tenant of a file of Azure's, by default the file's name; it replaces the tenants of the other formats.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise TraceError(f"{path}: is no regular file, and a trace is read more than once")
        with path.open("rb") as file:
            rows = _open_rows(path, file, tenant)
            scan = _Scan(path, rows)
            for arrival in rows:
                scan.take(arrival)
            return scan.result(tenant, _identity(file))
    except OSError as error:
        raise unreadable(path, error) from None


def _open_rows(path: Path, file: BinaryIO, tenant: str | None, first: datetime | None = None) -> Rows | PrefixRows:
    if path.suffix.lower() == ".jsonl":
        return PrefixRows(path, _lines(path, file), tenant)
    return Rows(path, file, tenant, first)


class _Scan:
    """What is kept of the rows while they are checked."""

    def __init__(self, path: Path, rows: Rows | PrefixRows) -> None:
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


def unreadable(path: Path, error: OSError) -> TraceError:
    return TraceError(f"{path}: {error.strerror or 'cannot be read'}")
