"""Workloads: requests in order of time, which can be iterated over again and again, also in another process.

open_workload() makes one from the arguments of the command line: files of requests (traces.py), or a YAML file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from operator import attrgetter
from pathlib import Path
from typing import Protocol

from headgate.workloads.arrivals import Arrival, TraceError, WorkloadError
from headgate.workloads.columns import NS_PER_S
from headgate.workloads.traces import TENANTS_MAX, Trace, scan_trace

_YAML_SUFFIXES = (".yaml", ".yml")


class Workload(Protocol):
    """Picklable. Every iteration yields the same arrivals, in order of time.

    `tenants`: in the order of their first requests, or as described. `weights`, `tiers`: of the tenants that have one.
    `notes`: sentences for the user.
    """

    @property
    def name(self) -> str: ...
    @property
    def requests(self) -> int: ...
    @property
    def last_arrival_s(self) -> float: ...
    @property
    def tenants(self) -> tuple[str, ...]: ...
    @property
    def weights(self) -> Mapping[str, float]: ...
    @property
    def tiers(self) -> Mapping[str, str]: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    def __iter__(self) -> Iterator[Arrival]: ...


class ListWorkload:
    """A workload of arrivals in memory. Sorts them by time."""

    def __init__(
        self,
        name: str,
        arrivals: Iterable[Arrival],
        *,
        weights: Mapping[str, float] | None = None,
        tiers: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._arrivals = sorted(arrivals, key=attrgetter("arrival_s"))
        self.requests = len(self._arrivals)
        self.last_arrival_s = self._arrivals[-1].arrival_s if self._arrivals else 0.0
        self.tenants = tuple(dict.fromkeys(arrival.tenant for arrival in self._arrivals))
        self.weights: Mapping[str, float] = dict(weights or {})
        self.tiers: Mapping[str, str] = dict(tiers or {})
        self.notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Arrival]:
        return iter(self._arrivals)


@dataclass(frozen=True)
class TraceWorkload:
    """One trace or several, merged by time; of equal times, that of the first trace comes first."""

    name: str
    traces: tuple[Trace, ...]
    requests: int
    last_arrival_s: float
    tenants: tuple[str, ...]
    notes: tuple[str, ...]
    weights: Mapping[str, float] = field(default_factory=dict)
    tiers: Mapping[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Arrival]:
        if len(self.traces) == 1:
            return iter(self.traces[0])
        return merge(*self.traces, key=attrgetter("arrival_s"))


def open_workload(specs: Sequence[str], columns: Mapping[str, str] | None = None) -> Workload:
    """Open FILE.csv, FILE.jsonl, TENANT=FILE or several of these, or one FILE.yaml. Raises WorkloadError.

    TENANT replaces the tenants of a file. `columns`: names of columns by what they hold, for a CSV or JSONL of other
    words. CSV and JSONL files are checked to their last row here, and not held.

    Files with Unix times or dates that overlap in time count from the earliest row of all files. If a file begins after
    another has ended, each counts from its own first row, and a note says so.
    """
    if not specs:
        raise WorkloadError("no workload: name a CSV or JSONL file, TENANT=FILE.csv or a YAML file")
    named = [_tenant_and_path(spec) for spec in specs]
    if any(path.suffix.lower() in _YAML_SUFFIXES for _, path in named):
        if columns:
            raise WorkloadError("--columns names the columns of a CSV: a YAML workload has none")
        return _read_yaml(named)
    return _combine_traces([(tenant, scan_trace(path, tenant=tenant, columns=columns)) for tenant, path in named])


def _tenant_and_path(spec: str) -> tuple[str | None, Path]:
    tenant, equals, name = spec.partition("=")
    if not equals or "/" in tenant or Path(spec).exists():
        return None, _path(spec, spec)
    if not tenant.strip():
        raise WorkloadError(f"{spec!r}: no tenant before the '=' (TENANT=FILE.csv was expected)")
    return tenant.strip(), _path(name, spec)


def _path(name: str, spec: str) -> Path:
    if not name or "\0" in name:
        raise WorkloadError(f"{spec!r}: no file (FILE.csv, TENANT=FILE.csv or FILE.yaml was expected)")
    return Path(name)


def _read_yaml(named: Sequence[tuple[str | None, Path]]) -> Workload:
    tenant, path = named[0]
    if len(named) > 1 or tenant is not None:
        raise WorkloadError("a YAML workload has its own tenants and stands alone: give FILE.yaml and nothing else")
    # Here, because pydantic and yaml are slow to import, and CSV needs neither.
    from headgate.workloads.described import read_planned

    return read_planned(path)


def _combine_traces(named: Sequence[tuple[str | None, Trace]]) -> TraceWorkload:
    traces = [trace for _, trace in named]
    traces, notes = _on_one_clock(traces)
    tenants = tuple(dict.fromkeys(tenant for trace in traces for tenant in trace.tenants))
    if len(tenants) > TENANTS_MAX:
        raise TraceError(f"{len(tenants)} tenants, more than the {TENANTS_MAX} that a workload may have")
    return TraceWorkload(
        name="+".join(tenant or trace.path.stem for tenant, trace in named),
        traces=tuple(traces),
        requests=sum(trace.requests for trace in traces),
        last_arrival_s=max(trace.last_arrival_s for trace in traces),
        tenants=tenants,
        notes=(*notes, *(note for trace in traces for note in _notes_of(trace))),
    )


def _on_one_clock(traces: list[Trace]) -> tuple[list[Trace], tuple[str, ...]]:
    dated = [(trace.first_ns, trace.last_arrival_s) for trace in traces if trace.first_ns is not None]
    if len(dated) < 2:
        return traces, ()
    origin_ns = min(first_ns for first_ns, _ in dated)
    reach_s = 0.0
    for first_ns, last_s in sorted(dated):
        start_s = (first_ns - origin_ns) / NS_PER_S
        if start_s > reach_s:
            return traces, ("The files do not overlap in time: each is counted from its own first row.",)
        reach_s = max(reach_s, start_s + last_s)
    return [trace if trace.first_ns is None else trace.counted_from(origin_ns) for trace in traces], ()


def _notes_of(trace: Trace) -> Iterator[str]:
    if trace.unordered_line is not None:
        line = trace.unordered_line
        yield f"{trace.path}: sorted by time: line {line} is the first that is earlier than one above it."
    if trace.without_output:
        yield (
            f"{trace.path}: {trace.without_output:,} of {trace.requests:,} requests have no output tokens: leave them "
            "out if they failed."
        )
