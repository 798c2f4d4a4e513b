"""Rows of a CSV with requests. Its columns are found by the names that servers and public traces give them.

The header names the columns, in any order. Upper and lower case are the same, and a space is an underscore. A first
token and an end are either a moment, on the clock of the arrivals, or a duration since the arrival:

    arrival        arrival, arrival_time, arrived_at, launch_time, start, start_time, starttime, submitted,
                   timestamp, ts
    first token    moment: first_token, first_token_time, completionstarttime
                   duration: ttft, time_to_first_token
    end            moment: end, end_time, endtime, finish, finish_time, finished
                   duration: latency, e2e, e2e_latency, duration, elapsed_time
    prompt         input_tokens, prompt_tokens, request_tokens, input_length, prompt_length, contexttokens,
                   num_prefill_tokens, prefill_tokens, input_len, prompt_len, input_token_len
    output         output_tokens, completion_tokens, response_tokens, output_length, generatedtokens,
                   num_decode_tokens, decode_tokens, output_len, output_token_len
    tenant         tenant, tenant_id, user, user_id, client, client_id
    application    app, application
    model          model

A name of a time may end in its unit, `_s`, `_ms`, `_us` or `_ns`; without, it is seconds. A name that is given may
have its unit behind a colon, as in `arrival=start:ms`. A moment may be an ISO 8601
time. Times are whole nanoseconds here, so that a moment of today keeps its microseconds.

Every error is a TraceError: one sentence that names file, line and column, and says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path

from headgate.workloads.arrivals import TOKENS_MAX, TraceError

NS_PER_S = 1_000_000_000
MOMENT_MAX_S = 10**11
"""The year 5138, counted from 1970."""
_UNITS_NS = {"s": NS_PER_S, "ms": 1_000_000, "us": 1_000, "ns": 1}
_TIMES: dict[str, tuple[str, ...]] = {
    "arrival": (
        "arrival", "arrival_time", "arrived_at", "launch_time", "start", "start_time", "starttime", "submitted",
        "timestamp", "ts",
    ),
    "first_token": ("first_token", "first_token_time", "completionstarttime"),
    "ttft": ("ttft", "time_to_first_token"),
    "end": ("end", "end_time", "endtime", "finish", "finish_time", "finished"),
    "latency": ("latency", "e2e", "e2e_latency", "duration", "elapsed_time"),
}  # fmt: skip
_OTHERS: dict[str, tuple[str, ...]] = {
    "input_tokens": (
        "input_tokens", "prompt_tokens", "request_tokens", "input_length", "prompt_length", "contexttokens",
        "num_prefill_tokens", "prefill_tokens", "input_len", "prompt_len", "input_token_len",
    ),
    "output_tokens": (
        "output_tokens", "completion_tokens", "response_tokens", "output_length", "generatedtokens",
        "num_decode_tokens", "decode_tokens", "output_len", "output_token_len",
    ),
    "tenant": ("tenant", "tenant_id", "user", "user_id", "client", "client_id"),
    "app": ("app", "application"),
    "model": ("model",),
}  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NamedRow:
    """The current row, by what its columns hold: `arrival`, `ttft` and so on. Every method raises TraceError.

    `given`: names of columns by what they hold, which come before the known ones. `wanted`: what the header must have,
    each in one of these forms.
    """

    def __init__(
        self, path: Path, header: Sequence[str], given: Mapping[str, str], wanted: Sequence[tuple[str, ...]]
    ) -> None:
        self._path = path
        self._header = [_plain(name) for name in header]
        self._columns = _find_columns(str(path), self._header, given, wanted)
        self._values: Sequence[str] = ()
        self.line = 1

    def take(self, line: int, values: Sequence[str]) -> None:
        """Make the given row the current one."""
        self.line, self._values = line, values
        if len(values) > len(self._header):
            raise TraceError(f"{self._path}, line {line}: {len(values)} values for {len(self._header)} columns")

    def has(self, form: str) -> bool:
        """Return whether the header has a column for it."""
        return form in self._columns

    def text(self, form: str) -> str:
        """Return the value without the spaces around it; "" if it is empty or has no column."""
        place = self._columns[form][0] if form in self._columns else len(self._values)
        return self._values[place].strip() if place < len(self._values) else ""

    def time_ns(self, form: str) -> int:
        """Return a moment or a duration in nanoseconds."""
        text, unit_ns = self.text(form), self._columns[form][1]
        try:
            number = Decimal(text)
        except InvalidOperation:
            return self._iso_ns(form, text)
        if not number.is_finite() or "_" in text:
            raise self.wrong(form, "is no number: write seconds, or leave out the row")
        if abs(number) * unit_ns > MOMENT_MAX_S * NS_PER_S:
            column = self._header[self._columns[form][0]]
            raise self.wrong(
                form,
                "is no time in this unit: end the column's name in its unit, _ms, _us or _ns, or give it with "
                f"--columns {form}={column}:ms",
            )
        return round(number * unit_ns)

    def _iso_ns(self, form: str, text: str) -> int:
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            what = "is empty: write it" if not text else "is no time: write seconds or an ISO 8601 time"
            raise self.wrong(form, f"{what}, or leave out the row") from None
        since = (when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH
        return since // timedelta(microseconds=1) * 1_000

    def tokens(self, form: str, least: int) -> int:
        """Return a number of tokens. `120.0` is one: spreadsheets and data frames write it."""
        value = whole_tokens(self.text(form), least)
        if value is None:
            raise self.wrong(form, f"is no whole number from {least} to {TOKENS_MAX}: write the tokens that were used")
        return value

    def wrong(self, form: str, what: str) -> TraceError:
        """Return the error for the current row's value."""
        column = self._header[self._columns[form][0]]
        return TraceError(f"{self._path}, line {self.line}, column {column!r}: {self.text(form)[:40]!r} {what}")


def whole_tokens(text: str, least: int = 0) -> int | None:
    """Return the number of tokens that a text names; None if it names none from `least` to TOKENS_MAX.

    Python also reads 1_000 and digits of other scripts; other programs do not.
    """
    if "_" in text or not text.isascii():
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if least <= value <= TOKENS_MAX and value == int(value) else None


def parse_columns(text: str) -> dict[str, str]:
    """Parse `arrival=NAME,ttft=NAME:ms,…`. Raises TraceError."""
    columns: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        form, equals, name = part.partition("=")
        if not equals or not name.strip() or form.strip() not in {**_TIMES, **_OTHERS}:
            kinds = ", ".join((*_TIMES, *_OTHERS))
            raise TraceError(f"--columns: expected KIND=NAME with a kind of {kinds}, not {part[:80]!r}")
        if form.strip() in columns:
            raise TraceError(f"--columns: {form.strip()} is named twice, in {text[:80]!r}: name it once")
        columns[form.strip()] = name.strip()
    return columns


def _find_columns(
    name: str, header: Sequence[str], given: Mapping[str, str], wanted: Sequence[tuple[str, ...]]
) -> dict[str, tuple[int, int]]:
    """Return the place of each column and its unit in nanoseconds, by what it holds. `name`: of the file."""
    if not header:
        raise TraceError(f"{name} is empty: its first line must name the columns, such as arrival and input_tokens")
    found: dict[str, tuple[int, int]] = {}
    for form in (*_TIMES, *_OTHERS):
        if (column := _column_of(name, form, header, given)) is not None:
            in_unit_ns = unit_ns(given.get(form, column)) if form in _TIMES else 1
            found[form] = (header.index(column), in_unit_ns)
    for forms in wanted:
        has = [form for form in forms if form in found]
        named = [form for form in has if form in given]
        if not has and (separator := _separator_of(header)):
            raise TraceError(f"{name}, line 1: its columns are separated by {separator!r}: write commas")
        if not has:
            known = ", ".join(known for form in forms for known in {**_TIMES, **_OTHERS}[form])
            raise TraceError(
                f"{name}, line 1: no column for {' or '.join(forms)} among {', '.join(header)[:200]}: "
                f"name it {known}, or give --columns {forms[0]}=NAME"
            )
        for form in has:
            if form != (named or has)[0]:
                del found[form]
    return found


def _column_of(name: str, form: str, header: Sequence[str], given: Mapping[str, str]) -> str | None:
    if form in given:
        wanted = given_name(given[form])
        names = [column for column in header if column == _plain(wanted)]
        if not names:
            stem, _, unit = wanted.rpartition(":")
            if _plain(stem) in header:
                units = ", ".join(_UNITS_NS)
                raise TraceError(f"--columns: {unit[:40]!r} is no unit of {form}; there are {units}")
            raise TraceError(
                f"{name}, line 1: no column {wanted[:40]!r}, which --columns names as {form}, among "
                f"{', '.join(header)[:200]}"
            )
    else:
        known = {**_TIMES, **_OTHERS}[form]
        names = [column for column in header if (_without_unit(column) if form in _TIMES else column) in known]
    if len(names) > 1:
        raise TraceError(
            f"{name}, line 1: {' and '.join(map(repr, names))} could each be {form}: choose with --columns {form}=NAME"
        )
    return names[0] if names else None


def _separator_of(header: Sequence[str]) -> str:
    """Return what separates the columns of a header that has no comma; "" if nothing known does."""
    (only, *others) = header
    return "" if others else next((each for each in ";\t|" if each in only), "")


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_")


def _without_unit(column: str) -> str:
    stem, _, unit = column.rpartition("_")
    return stem if unit in _UNITS_NS and stem else column


def given_name(given: str) -> str:
    """Return the name of a column that was given as NAME or NAME:UNIT."""
    name, _, unit = given.rpartition(":")
    return name if name and unit in _UNITS_NS else given


def unit_ns(column: str) -> int:
    """Return the nanoseconds of the unit behind a column's colon or in which its name ends; else those of a second."""
    name = given_name(column)
    unit = column[len(name) + 1 :] or ("_" in name and name.rpartition("_")[2])
    return _UNITS_NS.get(unit or "s", NS_PER_S)
