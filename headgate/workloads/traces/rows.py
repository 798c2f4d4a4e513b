"""The rows of a trace, checked and read as arrivals. Each error is one sentence that names file, line and column."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from dispatcher.policies.tiers import TENANT_TIERS
from headgate.workloads.arrivals import Arrival, TraceError

OWN_COLUMNS = ("arrival_s", "tenant", "input_tokens", "output_tokens")
OPTIONAL_COLUMNS = ("interaction", "stage", "app", "model", "tier", "slo_ttft_ms", "system_tokens", "slo_class")
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
TOKENS_MAX = 10_000_000
TENANT_CHARS_MAX = 200
LINE_BYTES_MAX = 65_536
"""Without it, a file without line ends would be read into memory whole."""


class Rows:
    """One pass over a trace: iterating yields its arrivals in the order of the file. Raises TraceError.

    `tenant`: the tenant of a file of Azure's, by default the file's name; it replaces the tenants of headgate's format.
    `first`: the time from which arrivals of Azure's format count, by default that of the first row.
    """

    def __init__(self, path: Path, file: BinaryIO, tenant: str | None, first: datetime | None = None) -> None:
        self._numbered_rows = _numbered_rows(path, file)
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


def _numbered_rows(path: Path, file: BinaryIO) -> Iterator[tuple[int, list[str]]]:
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
    missing = [name for name in (AZURE_COLUMNS if _is_azure(header) else OWN_COLUMNS) if name not in header]
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
        if self._columns == len(OWN_COLUMNS):
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
