"""Making a workload of a YAML file. Each error is one sentence that names file, line, column and key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dispatcher.settings.strict import Loc
from dispatcher.settings.yaml_file import Document, read_document
from headgate.workloads.arrivals import TraceError
from headgate.workloads.described_fields import (
    ArrivalProcess,
    EmpiricalLength,
    InteractionFields,
    LengthDistribution,
    TenantFields,
    WorkloadFields,
)
from headgate.workloads.lengths import Empirical, Length, SampledLengths
from headgate.workloads.planned import REQUESTS_MAX, CallsShare, InteractionArrivals, PlannedWorkload, TenantPlan
from headgate.workloads.processes import TimedArrivals
from headgate.workloads.traces import SORTED_ROWS_MAX, TENANT_CHARS_MAX, scan_trace

EMPIRICAL_ROWS_MAX = SORTED_ROWS_MAX
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
        if not name.strip() or len(name) > TENANT_CHARS_MAX:
            raise self._document.wrong(loc, f"a tenant's name has 1 to {TENANT_CHARS_MAX} characters")
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
            if trace.requests > EMPIRICAL_ROWS_MAX:
                what = f"{trace.requests} rows, more than the {EMPIRICAL_ROWS_MAX} that lengths are drawn from"
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
