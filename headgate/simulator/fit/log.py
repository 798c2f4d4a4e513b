"""The log of a server as a CSV: a row a request, with arrival, first token, end and lengths.

The header names the columns, in any order; upper and lower case are the same. A first token and an end are either a
moment, on the clock of the arrivals, or a duration since the arrival:

    arrival        arrival, arrival_time, start, start_time, submitted, timestamp
    first token    moment: first_token, first_token_time      duration: ttft, time_to_first_token
    end            moment: end, end_time, finish, finished    duration: latency, e2e, e2e_latency, duration
    prompt         input_tokens, prompt_tokens, input_length, prompt_length, contexttokens
    output         output_tokens, completion_tokens, output_length, generatedtokens
    tenant         tenant, user, client; without such a column there is one tenant

A name of a time may end in its unit, `_s`, `_ms`, `_us` or `_ns`; without, it is seconds. A moment may be an ISO 8601
time. A row with neither first token nor end is a request that was not served; the fit leaves it out.

Every error is a ServerLogError: one sentence that names file, line and column, and says what to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from headgate.workloads.arrivals import TOKENS_MAX, WorkloadError
from headgate.workloads.traces import numbered_rows, unreadable

REQUESTS_MIN = 10
"""Four figures are fitted, and a handful of requests says nothing about their error."""
_REQUESTS_MAX = 1_000_000
_SECONDS_MAX = 1e11
"""The year 5138, counted from 1970."""
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_TIMES: dict[str, tuple[str, ...]] = {
    "arrival": ("arrival", "arrival_time", "start", "start_time", "submitted", "timestamp"),
    "first_token": ("first_token", "first_token_time"),
    "ttft": ("ttft", "time_to_first_token"),
    "end": ("end", "end_time", "finish", "finished"),
    "latency": ("latency", "e2e", "e2e_latency", "duration"),
}
_OTHERS: dict[str, tuple[str, ...]] = {
    "input_tokens": ("input_tokens", "prompt_tokens", "input_length", "prompt_length", "contexttokens"),
    "output_tokens": ("output_tokens", "completion_tokens", "output_length", "generatedtokens"),
    "tenant": ("tenant", "user", "client"),
}
_WANTED = (("arrival",), ("first_token", "ttft"), ("end", "latency"), ("input_tokens",), ("output_tokens",))
"""What a log has, each in one of these forms."""


class ServerLogError(WorkloadError):
    """A file is not a log that an engine can be fitted to."""


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A request that was served. The times are in seconds, counted from the first row's arrival."""

    arrival_s: float
    first_token_s: float
    end_s: float
    input_tokens: int
    output_tokens: int
    tenant: str


@dataclass(frozen=True, slots=True)
class ServerLog:
    """`requests`: those that were served, in order of arrival. `unserved`: the number of the others."""

    name: str
    requests: tuple[LoggedRequest, ...]
    unserved: int


def read_log(path: Path, columns: Mapping[str, str] | None = None) -> ServerLog:
    """Read a log. `columns`: names of columns by what they hold, for headers of other words. Raises ServerLogError."""
    try:
        with path.open("rb") as file:
            rows = numbered_rows(path, file)
            reader = _Reader(path, next(rows, (1, []))[1], columns or {})
            for line, values in rows:
                if values:
                    reader.take(line, values)
    except OSError as error:
        raise unreadable(path, error) from None
    if len(reader.requests) < REQUESTS_MIN:
        raise ServerLogError(
            f"{path}: has {len(reader.requests)} requests with a first token and an end, and a fit needs at least "
            f"{REQUESTS_MIN}: record for longer"
        )
    return ServerLog(path.name, tuple(reader.requests), reader.unserved)


class _Reader:
    def __init__(self, path: Path, names: Sequence[str], columns: Mapping[str, str]) -> None:
        self._path = path
        self._header = [name.strip().lower() for name in names]
        self._columns = find_columns(str(path), self._header, columns)
        self._line = 1
        self._values: Sequence[str] = ()
        self._first_s: float | None = None
        self._last_s = -math.inf
        self.requests: list[LoggedRequest] = []
        self.unserved = 0

    def take(self, line: int, values: Sequence[str]) -> None:
        """Read one row. Raises ServerLogError."""
        self._line, self._values = line, values
        if len(values) > len(self._header):
            raise ServerLogError(f"{self._path}, line {line}: {len(values)} values for {len(self._header)} columns")
        arrival_s = self._moment("arrival")
        if arrival_s < self._last_s:
            raise self._wrong("arrival", "is earlier than the row above: sort the rows by arrival")
        self._last_s = arrival_s
        if self._first_s is None:
            self._first_s = arrival_s
        first, end = self._form_of("first_token", "ttft"), self._form_of("end", "latency")
        if not self._text(first) and not self._text(end):
            self.unserved += 1
            return
        if len(self.requests) == _REQUESTS_MAX:
            raise ServerLogError(f"{self._path}: more than {_REQUESTS_MAX} requests: fit to a part of it")
        self.requests.append(self._request(arrival_s, first, end))

    def _request(self, arrival_s: float, first: str, end: str) -> LoggedRequest:
        first_s, end_s = self._since(first, arrival_s), self._since(end, arrival_s)
        if first_s < 0:
            raise self._wrong(first, "is before the arrival: leave it empty for a request that was not served")
        if end_s < first_s:
            raise self._wrong(end, "is before the first token: check which columns are durations, and their units")
        assert self._first_s is not None  # noqa: S101
        begin_s = arrival_s - self._first_s
        return LoggedRequest(
            begin_s,
            begin_s + first_s,
            begin_s + end_s,
            self._tokens("input_tokens", 0),
            self._tokens("output_tokens", 1),
            (self._text("tenant") if "tenant" in self._columns else "") or "all",
        )

    def _form_of(self, *forms: str) -> str:
        return next(form for form in forms if form in self._columns)

    def _since(self, form: str, arrival_s: float) -> float:
        """Return the seconds since the arrival."""
        return self._moment(form) - (0.0 if form in ("ttft", "latency") else arrival_s)

    def _moment(self, form: str) -> float:
        text, unit_s = self._text(form), self._columns[form][1]
        try:
            seconds = float(text) * unit_s
        except ValueError:
            seconds = self._iso_s(form, text)
        if not math.isfinite(seconds):
            raise self._wrong(form, "is no number: write seconds, or leave out the row")
        if abs(seconds) > _SECONDS_MAX:
            raise self._wrong(form, "is no time in this unit: end the column's name in its unit, _ms, _us or _ns")
        return seconds

    def _iso_s(self, form: str, text: str) -> float:
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            what = "is empty: write it" if not text else "is no time: write seconds"
            raise self._wrong(form, f"{what}, or leave out the row") from None
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()

    def _tokens(self, form: str, least: int) -> int:
        try:
            value = float(self._text(form))
        except ValueError:
            value = math.nan
        if not (least <= value <= TOKENS_MAX and value == int(value)):
            raise self._wrong(form, f"is no whole number from {least} to {TOKENS_MAX}: write the tokens that were used")
        return int(value)

    def _text(self, form: str) -> str:
        place = self._columns[form][0]
        return self._values[place].strip() if place < len(self._values) else ""

    def _wrong(self, form: str, what: str) -> ServerLogError:
        column = self._header[self._columns[form][0]]
        return ServerLogError(f"{self._path}, line {self._line}, column {column!r}: {self._text(form)[:40]!r} {what}")


def find_columns(name: str, header: Sequence[str], columns: Mapping[str, str]) -> dict[str, tuple[int, float]]:
    """Return the place of each column and its unit in seconds, by what it holds. Raises ServerLogError.

    `name`: of the file. `columns`: names that were given, which come before the known ones.
    """
    if not header:
        raise ServerLogError(f"{name} is empty: its first line must name the columns, such as arrival and first_token")
    found: dict[str, tuple[int, float]] = {}
    for form in (*_TIMES, *_OTHERS):
        if (column := _column_of(name, form, header, columns)) is not None:
            found[form] = (header.index(column), _unit_s(column) if form in _TIMES else 1.0)
    for forms in _WANTED:
        has = [form for form in forms if form in found]
        given = [form for form in has if form in columns]
        if not has:
            known = ", ".join(known for form in forms for known in {**_TIMES, **_OTHERS}[form])
            raise ServerLogError(
                f"{name}, line 1: no column for {' or '.join(forms)} among {', '.join(header)[:200]}: "
                f"name it {known}, or give --columns {forms[0]}=NAME"
            )
        for form in has:
            if form != (given or has)[0]:
                del found[form]
    return found


def _column_of(name: str, form: str, header: Sequence[str], columns: Mapping[str, str]) -> str | None:
    if form in columns:
        names = [column for column in header if column == columns[form].strip().lower()]
        if not names:
            raise ServerLogError(f"{name}, line 1: no column {columns[form][:40]!r}, which --columns names as {form}")
    else:
        known = {**_TIMES, **_OTHERS}[form]
        names = [column for column in header if (_without_unit(column) if form in _TIMES else column) in known]
    if len(names) > 1:
        raise ServerLogError(
            f"{name}, line 1: {' and '.join(map(repr, names))} could each be {form}: choose with --columns {form}=NAME"
        )
    return names[0] if names else None


def _without_unit(column: str) -> str:
    stem, _, unit = column.rpartition("_")
    return stem if unit in _UNITS and stem else column


def _unit_s(column: str) -> float:
    return _UNITS.get(column.rpartition("_")[2], 1.0) if "_" in column else 1.0


def parse_columns(text: str) -> dict[str, str]:
    """Parse `arrival=NAME,ttft=NAME,…`. Raises ServerLogError."""
    columns: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        form, equals, name = part.partition("=")
        if not equals or not name.strip() or form.strip() not in {**_TIMES, **_OTHERS}:
            kinds = ", ".join((*_TIMES, *_OTHERS))
            raise ServerLogError(f"--columns: expected KIND=NAME with a kind of {kinds}, not {part[:80]!r}")
        columns[form.strip()] = name.strip()
    return columns
