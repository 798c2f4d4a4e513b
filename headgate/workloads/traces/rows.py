"""The rows of a trace, checked: whatever is wrong with one is a sentence that names file, line and column.

This slow parser produces the error messages; columns.py reads the rows again that this one found valid.
"""

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
OPTIONAL_COLUMNS = ("interaction", "stage", "app", "model", "tier", "slo_ttft_ms", "system_tokens")
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
TOKENS_MAX = 10_000_000
TENANT_CHARS_MAX = 200
LINE_BYTES_MAX = 65_536
"""A file without line ends is never read whole to say so."""


def numbered_rows(path: Path, file: BinaryIO) -> Iterator[tuple[int, list[str]]]:
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


def header_of(path: Path, names: Sequence[str]) -> tuple[str, ...]:
    """The columns of a first row. Raises TraceError: one is there twice, or one that must be there is not."""
    header = tuple(name.strip() for name in names)
    for name in header:
        if name and header.count(name) > 1:
            raise TraceError(f"{path}, line 1: column {name!r} is there twice")
    missing = [name for name in (AZURE_COLUMNS if is_azure(header) else OWN_COLUMNS) if name not in header]
    if missing:
        raise TraceError(f"{path}, line 1: column {missing[0]!r} is missing (found: {', '.join(header) or 'nothing'})")
    return header


def is_azure(header: Sequence[str]) -> bool:
    return "TIMESTAMP" in header


def timestamp(text: str) -> datetime:
    """The traces of 2023 name no zone; those of 2024 do, and leave the fraction out where it is zero."""
    when = datetime.fromisoformat(text)
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when


class CheckedRow:
    """One row after the other, by the names of its columns. Every method raises TraceError."""

    def __init__(self, path: Path, header: Sequence[str]) -> None:
        self._path = path
        self._places = {name: place for place, name in enumerate(header)}
        self._columns = len(header)
        self.time_column = "TIMESTAMP" if is_azure(header) else "arrival_s"
        self._line = 1
        self._values: Sequence[str] = ()

    def take(self, line: int, values: Sequence[str]) -> None:
        self._line = line
        self._values = values
        if len(values) > self._columns:
            raise TraceError(f"{self._path}, line {line}: {len(values)} values for {self._columns} columns")

    def wrong(self, column: str, what: str) -> TraceError:
        value = self._raw(column)[:40]
        return TraceError(f"{self._path}, line {self._line}, column {column!r}: {value!r} {what}")

    def azure(self, tenant: str, first: datetime) -> Arrival:
        """Counted from `first`, before which it may be."""
        arrival_s = (self.timestamp() - first).total_seconds()
        return Arrival(arrival_s, tenant, self.tokens("ContextTokens"), self.tokens("GeneratedTokens"))

    def own(self, tenant: str | None) -> Arrival:
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
        )

    def timestamp(self) -> datetime:
        try:
            return timestamp(self.text("TIMESTAMP"))
        except ValueError:
            raise self.wrong("TIMESTAMP", "is not a timestamp") from None

    def tenant(self) -> str:
        name = self.text("tenant")
        if len(name) > TENANT_CHARS_MAX:
            raise self.wrong("tenant", f"is the start of a name of more than {TENANT_CHARS_MAX} characters")
        return name

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
        """A number as other programs write it: Python's own 1_000 and other scripts' digits are not."""
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
