"""Workloads: requests in order of time, to be iterated over again and again, in this process or another.

open_workload() makes one from what a person names: CSV files (ours, or Azure's, one a tenant), or one YAML file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from operator import attrgetter
from pathlib import Path
from typing import Protocol

from headgate.workloads.arrivals import Arrival, WorkloadError
from headgate.workloads.traces.files import TENANTS_MAX, Trace, TraceError, scan_trace

YAML_SUFFIXES = (".yaml", ".yml")


class Workload(Protocol):
    """Picklable. Every iteration gives the same arrivals, in order of time.

    `tenants` in the order in which they were met; `weights` and `tiers` of those whose description names them;
    `notes`: sentences that the user should read.
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
    """Arrivals that somebody already holds, sorted by time where they are not."""

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
    """One trace or several, merged by time; where times are equal the one named first comes first."""

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


def open_workload(specs: Sequence[str]) -> Workload:
    """Each of `specs` is FILE.csv, TENANT=FILE.csv (the tenant of Azure's file; renames all of ours), or the only one
    is FILE.yaml. CSV is checked to its last row here, and not held.

    Azure's files that overlap in time keep their own clock, counted from the earliest row of all; where one begins
    after another ended each is counted from its own first row, and a note says so. Raises WorkloadError.
    """
    if not specs:
        raise WorkloadError("no workload: name a CSV file, TENANT=FILE.csv or a YAML file")
    named = [_tenant_and_path(spec) for spec in specs]
    if any(path.suffix.lower() in YAML_SUFFIXES for _, path in named):
        return _described(named)
    return _traced([(tenant, scan_trace(path, tenant=tenant)) for tenant, path in named])


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


def _described(named: Sequence[tuple[str | None, Path]]) -> Workload:
    tenant, path = named[0]
    if len(named) > 1 or tenant is not None:
        raise WorkloadError("a YAML workload names its own tenants and stands alone: give FILE.yaml and nothing else")
    from headgate.workloads.described.reading import (
        read_planned,  # pydantic and yaml are slow to load, and a CSV needs neither
    )

    return read_planned(path)


def _traced(named: Sequence[tuple[str | None, Trace]]) -> TraceWorkload:
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
        notes=(*notes, *(_sorted_note(trace) for trace in traces if trace.unordered_line is not None)),
    )


def _on_one_clock(traces: list[Trace]) -> tuple[list[Trace], tuple[str, ...]]:
    dated = [(trace.first, trace.last_arrival_s) for trace in traces if trace.first is not None]
    if len(dated) < 2:
        return traces, ()
    origin = min(first for first, _ in dated)
    reach_s = 0.0
    for first, last_s in sorted(dated):
        start_s = (first - origin).total_seconds()
        if start_s > reach_s:
            return traces, ("The files do not overlap in time: each is counted from its own first row.",)
        reach_s = max(reach_s, start_s + last_s)
    return [trace if trace.first is None else trace.counted_from(origin) for trace in traces], ()


def _sorted_note(trace: Trace) -> str:
    return f"{trace.path}: rows out of order of time (the first is line {trace.unordered_line}) were sorted."
