"""Traces as files, streamed however large they are.

headgate's format: arrival_s,tenant,input_tokens,output_tokens and optionally
                   interaction,stage,app,model,adapter,tier,slo_ttft_ms,system_tokens,slo_class
any other CSV:     columns for arrival, input tokens and output tokens, and optionally tenant, app and model, by their
                   usual names and units (columns.py) or as --columns says, such as Azure's LLM inference traces.
                   Arrivals count from the earliest row. Without a column for it, the tenant is the file's name.
a .jsonl file:     an object for each request, with hashes of the prompts as Mooncake's traces (prefix_rows.py)

Arrivals of headgate's format and of a .jsonl file count from 0; Unix times (EPOCH_MIN_S or more) count from the
earliest row.

scan_trace() reads a file once and checks every row. Each iteration over the Trace reads the file again, row by row.
Only rows that are not in order of time are sorted in memory, up to SORTED_ROWS_MAX of them.

The rows are checked and read as arrivals. Each error is one sentence that names file, line and column.
"""

from __future__ import annotations

import csv
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO

from headgate.workloads.arrivals import Arrival, TraceError
from headgate.workloads.columns import NS_PER_S
from headgate.workloads.prefix_rows import PrefixRow, PrefixRows
from headgate.workloads.rows import OWN_COLUMNS, OtherRow, OwnRow

_WANTED = (("arrival",), ("input_tokens",), ("output_tokens",))
"""What every other CSV has, by the kinds of columns.py."""
EPOCH_MIN_S = 1e8
"""An arrival of at least this is a Unix time: no trace is three years long."""
LINE_BYTES_MAX = 65_536
"""Without it, a file without line ends would be read into memory whole."""
HASHED_LINE_BYTES_MAX = 16_000_000
"""A prompt of TOKENS_MAX tokens has 625,000 hashes of Qwen's blocks, of up to 20 digits."""


class Rows:
    """One pass over a trace: iterating yields its arrivals in the order of the file. Raises TraceError.

    `tenant` replaces the tenants of the file. `columns`: names of columns by what they hold. `first_ns`: the time from
    which arrivals count, by default that of the first row, or 0 in headgate's format.
    """

    def __init__(
        self,
        path: Path,
        file: BinaryIO,
        tenant: str | None,
        columns: Mapping[str, str],
        first_ns: int | None = None,
    ) -> None:
        self._numbered_rows = numbered_rows(path, file)
        header = tuple(name.strip() for name in next(self._numbered_rows, (1, []))[1])
        check_header(path, header)
        self.row: OwnRow | OtherRow
        if not columns and all(name in header for name in OWN_COLUMNS):
            self.row = OwnRow(path, header)
        else:
            self.row = OtherRow(path, header, columns, _WANTED)
        self._tenant = tenant if self.row.has_tenant else tenant or path.stem
        self.first_ns = first_ns

    def __iter__(self) -> Iterator[Arrival]:
        for line, values in self._numbered_rows:
            if values:
                self.row.take(line, values)
                if self.first_ns is None:
                    self.first_ns = self.row.first_ns()
                yield self.row.arrival(self._tenant, self.first_ns)


def numbered_rows(path: Path, file: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    """Yield each row with the number of its last line: a quoted value may contain line ends."""
    reader = csv.reader(_lines(path, file), strict=True)
    try:
        for values in reader:
            yield reader.line_num, values
    except csv.Error as error:
        raise TraceError(f"{path}, line {reader.line_num}: not CSV ({error})") from None


def _lines(path: Path, file: BinaryIO, bytes_max: int = LINE_BYTES_MAX) -> Iterator[str]:
    """Yield lines as text, without the byte order mark that spreadsheets write."""
    number = 0
    while line := file.readline(bytes_max + 1):
        number += 1
        if len(line) > bytes_max:
            raise TraceError(f"{path}, line {number}: longer than {bytes_max} bytes")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise TraceError(f"{path}, line {number}: not UTF-8 text{_unpack_hint(line)}") from None


def _unpack_hint(line: bytes) -> str:
    """Return what to do with a file of a known kind that begins like this; "" for others."""
    if line.startswith(b"\x1f\x8b"):
        return ": a gzip file, which gunzip unpacks"
    return ": a Parquet file, which pandas can write as CSV" if line.startswith(b"PAR1") else ""


def check_header(path: Path, header: Sequence[str]) -> None:
    """Raises TraceError if it is JSON, or a name is there twice."""
    if header and header[0].startswith(("{", "[")):
        raise TraceError(
            f"{path}, line 1: JSON in place of a CSV's header: headgate trace makes a CSV of OpenTelemetry's spans and "
            "of vLLM's benchmark, and simulate reads a file with an object for each request if its name ends in .jsonl"
        )
    for name in header:
        if name and header.count(name) > 1:
            raise TraceError(f"{path}, line 1: column {name!r} appears twice")


SORTED_ROWS_MAX = 1_000_000
"""Rows that can be sorted: about 200 MB of them."""
LISTED_ROWS_MAX = 5_000_000
"""Rows that read_trace() puts in a list."""
TENANTS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Trace:
    """A file of which every row was checked. Iterating reads it again, in order of time.

    `tenant`, `columns`: as in scan_trace(). `first_ns`: the Unix time from which arrivals count, in nanoseconds; None
    if they count from 0. `unordered_line`: the first row that is earlier than a row above it.
    `without_output`: requests with no output tokens. Iterating raises TraceError if the file is not the checked one.
    """

    path: Path
    tenant: str | None
    columns: Mapping[str, str]
    first_ns: int | None
    requests: int
    last_arrival_s: float
    tenants: tuple[str, ...]
    unordered_line: int | None
    without_output: int
    identity: tuple[int, int]

    def __iter__(self) -> Iterator[Arrival]:
        if self.unordered_line is not None:
            return iter(sorted(self._stream(), key=attrgetter("arrival_s")))
        return self._stream()

    def counted_from(self, first_ns: int) -> Trace:
        """Return the same rows, counted from another time, if they count from one."""
        if self.first_ns is None:
            return self
        last_ns = self.first_ns + round(self.last_arrival_s * NS_PER_S)
        return replace(self, first_ns=first_ns, last_arrival_s=(last_ns - first_ns) / NS_PER_S)

    def _stream(self) -> Iterator[Arrival]:
        try:
            with self.path.open("rb") as file:
                if _identity(file) != self.identity:
                    raise TraceError(f"{self.path}: has changed since it was checked")
                yield from _open_rows(self.path, file, self.tenant, self.columns, self.first_ns)
        except OSError as error:
            raise unreadable(self.path, error) from None


def read_trace(path: Path, *, tenant: str | None = None) -> list[Arrival]:
    """Return all arrivals in order of time. `tenant` as in scan_trace(). Raises TraceError."""
    trace = scan_trace(path, tenant=tenant)
    if trace.requests > LISTED_ROWS_MAX:
        raise TraceError(f"{path}: {trace.requests} rows, more than the {LISTED_ROWS_MAX} that can be held at once")
    return list(trace)


def scan_trace(path: Path, *, tenant: str | None = None, columns: Mapping[str, str] | None = None) -> Trace:
    """Read the whole file to check it, without holding it. Raises TraceError.

    `tenant`: the tenant of all rows, which replaces those of the file. `columns`: names of columns by what they hold,
    for headers of other words.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise TraceError(f"{path}: is no regular file, and a trace is read more than once")
        with path.open("rb") as file:
            rows = _open_rows(path, file, tenant, columns or {})
            scan = _Scan(path, rows)
            for arrival in rows:
                scan.take(arrival)
            return scan.result(tenant, columns or {}, _identity(file))
    except OSError as error:
        raise unreadable(path, error) from None


def _open_rows(
    path: Path, file: BinaryIO, tenant: str | None, columns: Mapping[str, str], first_ns: int | None = None
) -> Rows | PrefixRows:
    if path.suffix.lower() == ".jsonl":
        return PrefixRows(path, _lines(path, file, HASHED_LINE_BYTES_MAX), tenant, columns, first_ns or 0)
    return Rows(path, file, tenant, columns, first_ns)


class _Scan:
    """What is kept of the rows while they are checked."""

    def __init__(self, path: Path, rows: Rows | PrefixRows) -> None:
        self._path = path
        self._rows = rows
        self._requests = 0
        self._earliest_s = self._latest_s = 0.0
        self._tenants: dict[str, None] = {}
        self._unordered_line: int | None = None
        self._without_output = 0

    def take(self, arrival: Arrival) -> None:
        if not self._requests:
            self._earliest_s = self._latest_s = arrival.arrival_s
        elif arrival.arrival_s < self._latest_s:
            self._unordered_line = self._unordered_line or self._rows.row.line
            self._earliest_s = min(self._earliest_s, arrival.arrival_s)
        self._latest_s = max(self._latest_s, arrival.arrival_s)
        self._requests += 1
        self._without_output += not arrival.output_tokens
        if arrival.tenant not in self._tenants:
            self._add_tenant(arrival.tenant)
        if self._unordered_line is not None and self._requests > SORTED_ROWS_MAX:
            raise TraceError(
                f"{self._path}, line {self._unordered_line}: is earlier than a row above it, and a trace of more than "
                f"{SORTED_ROWS_MAX} rows must be in order of time"
            )

    def _add_tenant(self, tenant: str) -> None:
        if len(self._tenants) == TENANTS_MAX:
            raise self._rows.row.wrong("tenant", f"is one tenant more than the {TENANTS_MAX} that a trace may have")
        self._tenants[tenant] = None

    def result(self, tenant: str | None, columns: Mapping[str, str], identity: tuple[int, int]) -> Trace:
        if not self._requests:
            raise TraceError(f"{self._path}: no requests in it")
        counts_from_0 = isinstance(self._rows.row, OwnRow | PrefixRow) and self._earliest_s < EPOCH_MIN_S
        earliest_ns, latest_ns = round(self._earliest_s * NS_PER_S), round(self._latest_s * NS_PER_S)
        return Trace(
            path=self._path,
            tenant=tenant,
            columns=columns,
            first_ns=None if counts_from_0 else (self._rows.first_ns or 0) + earliest_ns,
            requests=self._requests,
            last_arrival_s=self._latest_s if counts_from_0 else (latest_ns - earliest_ns) / NS_PER_S,
            tenants=tuple(self._tenants),
            unordered_line=self._unordered_line,
            without_output=self._without_output,
            identity=identity,
        )


def _identity(file: BinaryIO) -> tuple[int, int]:
    """Return size and time of the last change: both differ once the file has changed."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def unreadable(path: Path, error: OSError) -> TraceError:
    return TraceError(f"{path}: {error.strerror or 'cannot be read'}")
