"""The current row of a trace as an arrival: in headgate's format, or by columns of other names (columns.py)."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from dispatcher.policies.tiers import TENANT_TIERS
from headgate.workloads.arrivals import TOKENS_MAX, Arrival, TraceError, problem_of_name
from headgate.workloads.columns import MOMENT_MAX_S, NS_PER_S, NamedRow, whole_tokens

OWN_COLUMNS = ("arrival_s", "tenant", "input_tokens", "output_tokens")


class OwnRow:
    """The current row of a trace in headgate's format. Every method raises TraceError."""

    def __init__(self, path: Path, header: Sequence[str]) -> None:
        self._path = path
        self._places = {name: place for place, name in enumerate(header)}
        self._columns = len(header)
        self._values: Sequence[str] = ()
        self._tenants: dict[str, str] = {}
        self._is_short = len(header) == len(OWN_COLUMNS)
        self.has_tenant = True
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

    def first_ns(self) -> int:
        """Return the time from which arrivals count if this is the first row."""
        return 0

    def arrival(self, tenant: str | None, first_ns: int) -> Arrival:
        """Return the arrival, counted from `first_ns`. `tenant` replaces the row's tenant."""
        arrival_s, named = self.moment_s(), tenant or self.tenant()
        if first_ns:
            arrival_s = (round(arrival_s * NS_PER_S) - first_ns) / NS_PER_S
        input_tokens, output_tokens = self.tokens("input_tokens"), self.tokens("output_tokens")
        if self._is_short:
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
            adapter=self.optional("adapter"),
        )

    def tenant(self) -> str:
        """Return the tenant. All rows of a tenant have the same string in memory."""
        name = self.text("tenant")
        if name not in self._tenants and (problem := problem_of_name(name)) is not None:
            raise self.wrong("tenant", problem)
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

    def moment_s(self) -> float:
        """Return the arrival, or the Unix time that stands for it."""
        moment_s = self.number("arrival_s")
        if moment_s > MOMENT_MAX_S:
            raise self.wrong("arrival_s", "is no time in seconds: name the column arrival_ms, arrival_us or arrival_ns")
        return moment_s

    def number(self, column: str) -> float:
        try:
            value = float(self._plain(column))
        except ValueError:
            hint = ": name the column timestamp for dates" if column == "arrival_s" else ""
            raise self.wrong(column, f"is not a number{hint}") from None
        if not 0.0 <= value < math.inf:
            raise self.wrong(column, "is not a time of zero or more")
        return value

    def tokens(self, column: str) -> int:
        """Return a number of tokens. `120.0` is one: spreadsheets and data frames write it."""
        text = self.text(column)
        value = int(text) if text.isdecimal() and text.isascii() and len(text) < 9 else whole_tokens(text)
        if value is None or value > TOKENS_MAX:
            raise self.wrong(column, f"is not a whole number from 0 to {TOKENS_MAX}")
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


class OtherRow(NamedRow):
    """The current row of another CSV with requests. Every method raises TraceError."""

    @property
    def has_tenant(self) -> bool:
        return self.has("tenant")

    def first_ns(self) -> int:
        """Return the time from which arrivals count if this is the first row."""
        return self.time_ns("arrival")

    def arrival(self, tenant: str | None, first_ns: int) -> Arrival:
        """Return the arrival, counted from `first_ns`: a row can be earlier. `tenant` replaces the row's tenant."""
        return Arrival(
            (self.time_ns("arrival") - first_ns) / NS_PER_S,
            tenant or self._tenant(),
            self.tokens("input_tokens", 0),
            self.tokens("output_tokens", 0),
            app=self.text("app") or None,
            model=self.text("model") or None,
        )

    def _tenant(self) -> str:
        name = self.text("tenant")
        if not name:
            raise self.wrong("tenant", "is empty: every row has a tenant, or the file has no such column")
        if (problem := problem_of_name(name)) is not None:
            raise self.wrong("tenant", problem)
        return sys.intern(name)
