"""Workloads described in YAML: a file becomes plans of tenants, and plans become arrivals.

Each error in a file is one sentence that names file, line, column and key.

A plan has arrival processes, lengths and interactions. Its arrivals are streamed, never held. The same seed gives the
same arrivals. The arrivals of a tenant depend only on the seed and on the tenant's own plan: adding, removing or
changing another tenant does not change them. Times, interactions and lengths each have a random source of their own, so
that changing one does not change the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush, merge
from operator import attrgetter
from pathlib import Path
from random import Random

from dispatcher.settings.strict import Loc
from dispatcher.settings.yaml_file import Document, read_document
from headgate.workloads.arrivals import Arrival, TraceError, WorkloadError, problem_of_name
from headgate.workloads.described_fields import (
    ArrivalProcess,
    EmpiricalLength,
    InteractionFields,
    LengthDistribution,
    TenantFields,
    WorkloadFields,
)
from headgate.workloads.distributions import Empirical, Length, SampledLengths, TimedArrivals
from headgate.workloads.traces import SORTED_ROWS_MAX, scan_trace

REQUESTS_MAX = 20_000_000
"""The most requests of a workload, which counts them once before it runs."""

_Call = tuple[float, int, int]
"""Time in seconds, number of the interaction, stage."""


@dataclass(frozen=True, slots=True)
class CallsShare:
    """Interactions of `low` to `high` calls, each number equally likely. `weight`: relative to the other shares."""

    low: int
    high: int
    weight: float


@dataclass(frozen=True, slots=True)
class InteractionArrivals:
    """Every arrival of the processes begins an interaction: the calls that answer one question of a user.

    Stage k (0, 1, 2, ...) has as arrival_s that of stage 0 + k x `think_s`, its earliest time. The simulator sends it
    at that time or when stage k - 1 is answered, whichever is later.
    Source: FairServe, section 3 and Table 2 (shares of interactions by number of calls).
    """

    shares: tuple[CallsShare, ...]
    think_s: float = 0.0

    def calls(self, random: Random) -> int:
        at = random.random() * sum(share.weight for share in self.shares)
        for share in self.shares:
            at -= share.weight
            if at < 0.0:
                break
        return share.low + int(random.random() * (share.high - share.low + 1))

    @property
    def mean(self) -> float:
        weight = sum(share.weight for share in self.shares)
        return sum(share.weight * (share.low + share.high) / 2.0 for share in self.shares) / weight


@dataclass(frozen=True, slots=True)
class TenantPlan:
    """One tenant. The starts and ends of `processes` decide whether they overlap.

    `requests_max`: the processes stop after so many requests, but the last interaction is always complete.
    `system_tokens`: part of the input; the whole input if that is shorter.
    """

    name: str
    processes: tuple[TimedArrivals, ...]
    lengths: SampledLengths
    weight: float = 1.0
    tier: str | None = None
    slo_ttft_ms: float | None = None
    app: str | None = None
    model: str | None = None
    slo_class: str | None = None
    system_tokens: int = 0
    requests_max: int | None = None
    interactions: InteractionArrivals | None = None

    @property
    def expected(self) -> float:
        """The average number of requests without `requests_max`."""
        calls = 1.0 if self.interactions is None else self.interactions.mean
        return calls * sum(process.expected for process in self.processes)

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        random = self._random(seed, "lengths")
        numbered = self.interactions is not None
        for at_s, interaction, stage in self.calls(seed):
            input_tokens, output_tokens = self.lengths.draw(random)
            yield Arrival(
                at_s,
                self.name,
                input_tokens,
                output_tokens,
                f"i{interaction}" if numbered else None,
                stage if numbered else None,
                self.app,
                self.model,
                self.tier,
                self.slo_ttft_ms,
                min(self.system_tokens, input_tokens),
                self.slo_class,
            )

    def calls(self, seed: int) -> Iterator[_Call]:
        """Yield calls in order of time; calls of the same time in the order in which their interactions began."""
        starts = enumerate(self._starts(seed))
        if self.interactions is None:
            singles = ((at_s, number, 0) for number, at_s in starts)
            yield from singles if self.requests_max is None else _first(singles, self.requests_max)
            return
        random, made, later = self._random(seed, "interactions"), 0, list[_Call]()
        for number, at_s in starts:
            while later and later[0][0] <= at_s:
                yield heappop(later)
            if self.requests_max is not None and made >= self.requests_max:
                break
            calls = self.interactions.calls(random)
            made += calls
            yield at_s, number, 0
            for stage in range(1, calls):
                heappush(later, (at_s + stage * self.interactions.think_s, number, stage))
        while later:
            yield heappop(later)

    def _starts(self, seed: int) -> Iterator[float]:
        randoms = (self._random(seed, f"times {number}") for number in range(len(self.processes)))
        return merge(*(process.times(random) for process, random in zip(self.processes, randoms, strict=True)))

    def _random(self, seed: int, what: str) -> Random:
        return Random(f"{seed} {what} of {self.name}")


def _first(calls: Iterator[_Call], most: int) -> Iterator[_Call]:
    for _, call in zip(range(most), calls, strict=False):
        yield call


@dataclass(frozen=True)
class PlannedWorkload:
    """A headgate.workloads.sources.Workload. No interaction begins at or after `duration_s`.

    Raises WorkloadError if the plans make no request, or more than REQUESTS_MAX.
    """

    name: str
    plans: tuple[TenantPlan, ...]
    duration_s: float
    seed: int = 0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self._extent[0]:
            raise WorkloadError(f"{self.name}: makes no request within {self.duration_s:g} s (seed {self.seed})")

    @property
    def requests(self) -> int:
        return self._extent[0]

    @property
    def last_arrival_s(self) -> float:
        return self._extent[1]

    @cached_property
    def _extent(self) -> tuple[int, float]:
        requests, last_s = 0, 0.0
        for plan in self.plans:
            for at_s, _, _ in plan.calls(self.seed):
                requests += 1
                last_s = max(last_s, at_s)
                if requests > REQUESTS_MAX:
                    raise WorkloadError(f"{self.name}: makes more than {REQUESTS_MAX} requests")
        return requests, last_s

    @property
    def tenants(self) -> tuple[str, ...]:
        return tuple(plan.name for plan in self.plans)

    @cached_property
    def weights(self) -> Mapping[str, float]:
        return {plan.name: plan.weight for plan in self.plans}

    @cached_property
    def tiers(self) -> Mapping[str, str]:
        return {plan.name: plan.tier for plan in self.plans if plan.tier is not None}

    def __iter__(self) -> Iterator[Arrival]:
        return merge(*(plan.arrivals(self.seed) for plan in self.plans), key=attrgetter("arrival_s"))


_EMPIRICAL_ROWS_MAX = SORTED_ROWS_MAX
_INPUTS = ("input_tokens", "ContextTokens")


def read_planned(path: Path) -> PlannedWorkload:
    """Read the file and make its workload. Raises ConfigurationError for the first error in the file."""
    document = read_document(path)
    return _PlanReader(path, document, document.parse(WorkloadFields)).workload()


class _PlanReader:
    """Makes the plans of the tenants, and checks what needs more than one field or another file."""

    def __init__(self, path: Path, document: Document, fields: WorkloadFields) -> None:
        self._path = path
        self._document = document
        self._fields = fields
        self._traces: dict[str, tuple[list[int], list[int]]] = {}

    def workload(self) -> PlannedWorkload:
        plans = [self._tenant(name, tenant) for name, tenant in self._fields.tenants.items()]
        expected = sum(plan.expected for plan in plans if plan.requests_max is None)
        expected += sum(min(plan.expected, plan.requests_max) for plan in plans if plan.requests_max is not None)
        if expected > REQUESTS_MAX:
            what = f"about {expected:.3g} requests in all, more than the {REQUESTS_MAX} that a workload may have"
            raise self._document.wrong(("tenants",), what)
        return PlannedWorkload(self._path.stem, tuple(plans), self._fields.duration_s, self._fields.seed)

    def _tenant(self, name: str, tenant: TenantFields) -> TenantPlan:
        loc: Loc = ("tenants", name)
        if (problem := problem_of_name(name)) is not None:
            raise self._document.wrong(loc, f"the tenant's name {problem}")
        return TenantPlan(
            name=name,
            processes=tuple(
                self._process((*loc, "arrivals", number), process) for number, process in enumerate(tenant.arrivals)
            ),
            lengths=SampledLengths(
                self._length((*loc, "input"), tenant.input, output=False),
                self._length((*loc, "output"), tenant.output, output=True),
            ),
            weight=tenant.weight,
            tier=tenant.tier,
            slo_ttft_ms=tenant.slo_ttft_ms,
            app=tenant.app,
            model=tenant.model,
            slo_class=tenant.slo_class,
            system_tokens=tenant.system_tokens,
            requests_max=tenant.requests,
            interactions=None if tenant.interactions is None else _interactions(tenant.interactions),
        )

    def _process(self, loc: Loc, process: ArrivalProcess) -> TimedArrivals:
        duration_s = self._fields.duration_s
        end_s = duration_s if process.end_s is None else process.end_s
        if end_s > duration_s:
            raise self._document.wrong((*loc, "end_s"), f"{end_s:g} is after the duration_s of {duration_s:g}")
        if process.start_s >= end_s:
            raise self._document.wrong((*loc, "start_s"), f"{process.start_s:g} should be before {end_s:g}, the end")
        rate = process.rate(end_s - process.start_s)
        return TimedArrivals(process.spacing_of(), rate, process.start_s, end_s, process.burst_of())

    def _length(self, loc: Loc, length: LengthDistribution, *, output: bool) -> Length:
        if not isinstance(length, EmpiricalLength):
            return length.length()
        if length.column is not None:
            output = length.column not in _INPUTS
        return Empirical(length.file, self._columns((*loc, "file"), length.file)[int(output)])

    def _columns(self, loc: Loc, file: str) -> tuple[Sequence[int], Sequence[int]]:
        """Return input and output tokens of a trace's rows. A file is read once for all tenants."""
        if file not in self._traces:
            if "\0" in file:
                raise self._document.wrong(loc, "should be the name of a file")
            try:
                trace = scan_trace(self._path.parent / file)
            except TraceError as error:
                raise self._document.wrong(loc, str(error)) from None
            if trace.requests > _EMPIRICAL_ROWS_MAX:
                what = f"{trace.requests} rows, more than the {_EMPIRICAL_ROWS_MAX} that lengths are drawn from"
                raise self._document.wrong(loc, what)
            inputs, outputs = list[int](), list[int]()
            for arrival in trace:
                inputs.append(arrival.input_tokens)
                outputs.append(arrival.output_tokens)
            self._traces[file] = inputs, outputs
        return self._traces[file]


def _interactions(fields: InteractionFields) -> InteractionArrivals:
    shares = tuple(CallsShare(*share.calls, share.weight) for share in fields.calls)
    return InteractionArrivals(shares, fields.think_s)
