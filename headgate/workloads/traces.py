"""Reads traces: our CSV format, and Azure's as it is published.

Ours:    arrival_s,tenant,input_tokens,output_tokens and optionally
         interaction,stage,app,model,tier,slo_ttft_ms,system_tokens
Azure's: TIMESTAMP,ContextTokens,GeneratedTokens, one file a tenant, arrival counted from its first row
         (Azure LLM inference traces 2023)

Whatever is wrong with a file is one sentence that names file, line and column.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from dispatcher.errors import ConfigurationError
from dispatcher.policies.tiers import Tier

OWN_COLUMNS = ("arrival_s", "tenant", "input_tokens", "output_tokens")
OPTIONAL_COLUMNS = ("interaction", "stage", "app", "model", "tier", "slo_ttft_ms", "system_tokens")
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
ROWS_MAX = 5_000_000
TOKENS_MAX = 10_000_000
LINE_BYTES_MAX = 65_536
"""A file without line ends is never read whole to say so."""


class TraceError(ConfigurationError):
    """The file is no trace that we can read."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a workload. `system_tokens` are part of `input_tokens`."""

    arrival_s: float
    tenant: str
    input_tokens: int
    output_tokens: int
    interaction: str | None = None
    stage: int | None = None
    app: str | None = None
    model: str | None = None
    tier: str | None = None
    slo_ttft_ms: float | None = None
    system_tokens: int = 0


def read_trace(path: Path, *, tenant: str | None = None) -> list[Arrival]:
    """All arrivals, in order of time. `tenant` names the one of Azure's file, and renames those of ours.

    Raises TraceError.
    """
    try:
        with path.open("rb") as file:
            arrivals = list(_arrivals(path, _rows(path, file), tenant))
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or 'cannot be read'}") from None
    if not arrivals:
        raise TraceError(f"{path}: no requests in it")
    return sorted(arrivals, key=lambda arrival: arrival.arrival_s)


def _rows(path: Path, file: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    """Each row with the number of the line that it ends on: a quoted value may hold line ends."""
    reader = csv.reader(_lines(path, file), strict=True)
    try:
        for values in reader:
            yield reader.line_num, values
    except csv.Error as error:
        raise TraceError(f"{path}, line {reader.line_num}: not CSV ({error})") from None


def _lines(path: Path, file: BinaryIO) -> Iterator[str]:
    """Lines as text; a byte order mark, which spreadsheets write, is not part of the first column's name."""
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise TraceError(f"{path}, line {number}: longer than {LINE_BYTES_MAX} bytes")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise TraceError(f"{path}, line {number}: not UTF-8 text") from None


def _header(path: Path, names: list[str]) -> list[str]:
    header = [name.strip() for name in names]
    for name in header:
        if name and header.count(name) > 1:
            raise TraceError(f"{path}, line 1: column {name!r} is there twice")
    return header


def _arrivals(path: Path, rows: Iterator[tuple[int, list[str]]], tenant: str | None) -> Iterator[Arrival]:
    header = _header(path, next(rows, (1, []))[1])
    azure = "TIMESTAMP" in header
    missing = [name for name in (AZURE_COLUMNS if azure else OWN_COLUMNS) if name not in header]
    if missing:
        raise TraceError(f"{path}, line 1: column {missing[0]!r} is missing (found: {', '.join(header) or 'nothing'})")
    first: datetime | None = None
    for number, values in rows:
        if not values:
            continue
        if number > ROWS_MAX:
            raise TraceError(f"{path}, line {number}: more than {ROWS_MAX} rows")
        if len(values) > len(header):
            raise TraceError(f"{path}, line {number}: {len(values)} values for {len(header)} columns")
        row = _Row(path, number, dict(zip(header, values, strict=False)))
        if azure:
            when = row.timestamp("TIMESTAMP")
            first = first or when
            yield _azure(row, (when - first).total_seconds(), tenant or path.stem)
        else:
            yield _own(row, tenant)


def _azure(row: _Row, arrival_s: float, tenant: str) -> Arrival:
    if arrival_s < 0:
        raise row.wrong("TIMESTAMP", "is before the first row's")
    return Arrival(arrival_s, tenant, row.tokens("ContextTokens"), row.tokens("GeneratedTokens"))


def _own(row: _Row, tenant: str | None) -> Arrival:
    stage = row.optional("stage")
    slo = row.optional("slo_ttft_ms")
    input_tokens, system_tokens = row.tokens("input_tokens"), 0
    if row.optional("system_tokens"):
        system_tokens = row.tokens("system_tokens")
        if system_tokens > input_tokens:
            raise row.wrong("system_tokens", f"is more than the {input_tokens} input tokens that it is part of")
    return Arrival(
        arrival_s=row.number("arrival_s"),
        tenant=tenant or row.text("tenant"),
        input_tokens=input_tokens,
        output_tokens=row.tokens("output_tokens"),
        interaction=row.optional("interaction"),
        stage=None if stage is None else row.tokens("stage"),
        app=row.optional("app"),
        model=row.optional("model"),
        tier=row.tier("tier"),
        slo_ttft_ms=None if slo is None else row.number("slo_ttft_ms"),
        system_tokens=system_tokens,
    )


@dataclass(frozen=True, slots=True)
class _Row:
    path: Path
    line: int
    values: Mapping[str, str]

    def wrong(self, column: str, what: str) -> TraceError:
        return TraceError(
            f"{self.path}, line {self.line}, column {column!r}: {self.values.get(column, '')[:40]!r} {what}"
        )

    def optional(self, column: str) -> str | None:
        return self.values.get(column, "").strip() or None

    def text(self, column: str) -> str:
        value = self.optional(column)
        if value is None:
            raise self.wrong(column, "is empty")
        return value

    def tier(self, column: str) -> str | None:
        value = self.optional(column)
        if value is not None and value not in list(Tier):
            raise self.wrong(column, f"is no tier: there are {', '.join(Tier)}")
        return value

    def plain(self, column: str) -> str:
        """A number as other programs write it: Python's own 1_000 and other scripts' digits are not."""
        value = self.text(column)
        if "_" in value or not value.isascii():
            raise ValueError(value)
        return value

    def number(self, column: str) -> float:
        try:
            value = float(self.plain(column))
        except ValueError:
            raise self.wrong(column, "is not a number") from None
        if not math.isfinite(value) or value < 0:
            raise self.wrong(column, "is not a time of zero or more")
        return value

    def tokens(self, column: str) -> int:
        try:
            value = int(self.plain(column))
        except ValueError:
            raise self.wrong(column, "is not a whole number") from None
        if not 0 <= value <= TOKENS_MAX:
            raise self.wrong(column, f"is not between 0 and {TOKENS_MAX}")
        return value

    def timestamp(self, column: str) -> datetime:
        try:
            when = datetime.fromisoformat(self.text(column))
        except ValueError:
            raise self.wrong(column, "is not a timestamp") from None
        # The traces of 2023 name no zone; those of 2024 do, and leave the fraction out where it is zero.
        return when.replace(tzinfo=UTC) if when.tzinfo is None else when
