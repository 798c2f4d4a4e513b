"""The log of a server as a CSV: a row a request, with arrival, first token, end and lengths.

The columns are those of workloads/columns.py, in any order. A row with neither first token nor end is a request that
was not served; so is one with -1 for both, as in the published runs of VTC, and one without output tokens, as clients
write for a request that failed. The fit leaves them out. Every error is a TraceError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headgate.workloads.arrivals import TraceError
from headgate.workloads.columns import NS_PER_S, NamedRow
from headgate.workloads.traces import check_header, numbered_rows, unreadable

REQUESTS_MIN = 10
"""Four figures are fitted, and a handful of requests says nothing about their error."""
_REQUESTS_MAX = 1_000_000
_NONE = frozenset({"", "-1", "-1.0", "-1.0000"})
"""What a request that was not served has in place of a time."""
_WANTED = (("arrival",), ("first_token", "ttft"), ("end", "latency"), ("input_tokens",), ("output_tokens",))
"""What a log has, each in one of these forms."""


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
    """Read a log. `columns`: names of columns by what they hold, for headers of other words. Raises TraceError."""
    try:
        with path.open("rb") as file:
            if file.read(1) in (b"{", b"["):
                raise TraceError(
                    f"{path} is JSON, and a fit reads a CSV: headgate trace FILE > log.csv makes one from "
                    "OpenTelemetry's spans and from the results of vllm bench serve"
                )
            file.seek(0)
            rows = numbered_rows(path, file)
            header = next(rows, (1, []))[1]
            check_header(path, header)
            reader = _Reader(path, header, columns or {})
            for line, values in rows:
                if values:
                    reader.take(line, values)
    except OSError as error:
        raise unreadable(path, error) from None
    if len(reader.requests) < REQUESTS_MIN:
        count = len(reader.requests)
        raise TraceError(
            f"{path}: has {count} request{'' if count == 1 else 's'} with a first token and an end, and a fit needs at "
            f"least {REQUESTS_MIN}: record for longer"
        )
    return ServerLog(path.name, tuple(reader.requests), reader.unserved)


class _Reader:
    def __init__(self, path: Path, names: Sequence[str], columns: Mapping[str, str]) -> None:
        self._path = path
        self._row = NamedRow(path, names, columns, _WANTED)
        self._first_form = next(form for form in ("first_token", "ttft") if self._row.has(form))
        self._end_form = next(form for form in ("end", "latency") if self._row.has(form))
        self._first_ns: int | None = None
        self._last_ns = 0
        self.requests: list[LoggedRequest] = []
        self.unserved = 0

    def take(self, line: int, values: Sequence[str]) -> None:
        """Read one row. Raises TraceError."""
        self._row.take(line, values)
        arrival_ns = self._row.time_ns("arrival")
        if self._first_ns is None:
            self._first_ns = self._last_ns = arrival_ns
        if arrival_ns < self._last_ns:
            raise self._row.wrong("arrival", "is earlier than the row above: sort the rows by arrival")
        self._last_ns = arrival_ns
        has_no_times = all(self._row.text(form) in _NONE for form in (self._first_form, self._end_form))
        if has_no_times or self._row.tokens("output_tokens", 0) == 0:
            self.unserved += 1
            return
        if len(self.requests) == _REQUESTS_MAX:
            raise TraceError(f"{self._path}: more than {_REQUESTS_MAX} requests: fit to a part of it")
        self.requests.append(self._request(arrival_ns, arrival_ns - self._first_ns))

    def _request(self, arrival_ns: int, begin_ns: int) -> LoggedRequest:
        first_ns, end_ns = self._since(self._first_form, arrival_ns), self._since(self._end_form, arrival_ns)
        if first_ns < 0:
            what = "is before the arrival: leave it empty for a request that was not served"
            raise self._row.wrong(self._first_form, what)
        if end_ns < first_ns:
            what = "is before the first token: check which columns are durations, and their units"
            raise self._row.wrong(self._end_form, what)
        return LoggedRequest(
            begin_ns / NS_PER_S,
            (begin_ns + first_ns) / NS_PER_S,
            (begin_ns + end_ns) / NS_PER_S,
            self._row.tokens("input_tokens", 0),
            self._row.tokens("output_tokens", 1),
            self._row.text("tenant") or "all",
        )

    def _since(self, form: str, arrival_ns: int) -> int:
        """Return the nanoseconds since the arrival."""
        return self._row.time_ns(form) - (0 if form in ("ttft", "latency") else arrival_ns)
