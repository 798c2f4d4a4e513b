"""A YAML file becomes a workload. Whatever is wrong with it is one sentence with file, line, column and key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from headgate.workloads import lengths, processes
from headgate.workloads.arrivals import TraceError, WorkloadError
from headgate.workloads.described import description as words
from headgate.workloads.described.document import Document, Loc, read_document
from headgate.workloads.described.tenants import REQUESTS_MAX, CallsShare, Interactions, PlannedWorkload, TenantPlan
from headgate.workloads.traces.files import SORTED_ROWS_MAX, scan_trace
from headgate.workloads.traces.rows import TENANT_CHARS_MAX

EMPIRICAL_ROWS_MAX = SORTED_ROWS_MAX
_INPUTS = ("input_tokens", "ContextTokens")


def read_planned(path: Path) -> PlannedWorkload:
    """Raises WorkloadError."""
    document = read_document(path)
    try:
        described = words.WorkloadDescription.model_validate(document.value)
    except ValidationError as error:
        wrongs = [_wrong(document, one) for one in error.errors()]
        raise min(wrongs, key=lambda one: one[0])[1] from None
    return _Planning(document, described).workload()


def _wrong(document: Document, error: ErrorDetails) -> tuple[tuple[int, int], WorkloadError]:
    """The sentence, and where it stands: the first in the file is what is said."""
    loc: Loc = tuple(error["loc"])
    what = error["msg"].replace("Input should", "should").replace("valid dictionary", "mapping")
    context = error.get("ctx", {})
    key: str | None = None
    match error["type"]:
        case "at_key":
            key = context["key"]
        case "missing":
            loc, key, what = loc[:-1], str(loc[-1]), "is missing"
        case "union_tag_not_found":
            key, what = "kind", "is missing"
        case "union_tag_invalid":
            key, what = "kind", f"{str(context['tag'])[:40]!r} should be one of {context['expected_tags']}"
        case "model_attributes_type":
            what = "should be a mapping with a 'kind'"
        case _ if isinstance(error["input"], str | int | float):
            what = f"{str(error['input'])[:40]!r} {what}"
    return document.place(loc, key), document.wrong(loc, what, key)


class _Planning:
    def __init__(self, document: Document, described: words.WorkloadDescription) -> None:
        self._document = document
        self._described = described
        self._traces: dict[str, tuple[list[int], list[int]]] = {}

    def workload(self) -> PlannedWorkload:
        plans = [self._tenant(name, tenant) for name, tenant in self._described.tenants.items()]
        expected = sum(plan.expected for plan in plans if plan.requests_max is None)
        expected += sum(min(plan.expected, plan.requests_max) for plan in plans if plan.requests_max is not None)
        if expected > REQUESTS_MAX:
            what = f"about {expected:.3g} requests in all, more than the {REQUESTS_MAX} that a workload may have"
            raise self._document.wrong(("tenants",), what)
        return PlannedWorkload(self._document.path.stem, tuple(plans), self._described.duration_s, self._described.seed)

    def _tenant(self, name: str, tenant: words.TenantDescription) -> TenantPlan:
        loc: Loc = ("tenants", name)
        if not name.strip() or len(name) > TENANT_CHARS_MAX:
            raise self._document.wrong(loc, f"a tenant's name has 1 to {TENANT_CHARS_MAX} characters")
        return TenantPlan(
            name=name,
            processes=tuple(
                self._process((*loc, "arrivals", number), process) for number, process in enumerate(tenant.arrivals)
            ),
            lengths=lengths.Lengths(
                self._length((*loc, "input"), tenant.input, output=False),
                self._length((*loc, "output"), tenant.output, output=True),
            ),
            weight=tenant.weight,
            tier=tenant.tier,
            slo_ttft_ms=tenant.slo_ttft_ms,
            app=tenant.app,
            model=tenant.model,
            system_tokens=tenant.system_tokens,
            requests_max=tenant.requests,
            interactions=_interactions(tenant.interactions),
        )

    def _process(self, loc: Loc, process: words.ArrivalProcess) -> processes.Process:
        duration_s = self._described.duration_s
        end_s = duration_s if process.end_s is None else process.end_s
        if end_s > duration_s:
            raise self._document.wrong((*loc, "end_s"), f"{end_s:g} is after the duration_s of {duration_s:g}")
        if process.start_s >= end_s:
            raise self._document.wrong((*loc, "start_s"), f"{process.start_s:g} should be before {end_s:g}, the end")
        return processes.Process(
            _spacing(process),
            _rate(process, end_s - process.start_s),
            process.start_s,
            end_s,
            _burst(process),
        )

    def _length(self, loc: Loc, length: words.LengthDistribution, *, output: bool) -> lengths.Length:
        if isinstance(length, words.FixedLength):
            return lengths.Fixed(length.tokens)
        if isinstance(length, words.UniformLength):
            return lengths.Uniform(length.low, length.high)
        if isinstance(length, words.LognormalLength):
            return lengths.Lognormal(length.median, length.sigma, length.min, length.max)
        if length.column is not None:
            output = length.column not in _INPUTS
        return lengths.Empirical(length.file, self._columns((*loc, "file"), length.file)[int(output)])

    def _columns(self, loc: Loc, file: str) -> tuple[Sequence[int], Sequence[int]]:
        """Input and output tokens of a trace's rows; read once, however many tenants are like it."""
        if file not in self._traces:
            if "\0" in file:
                raise self._document.wrong(loc, "should be the name of a file")
            try:
                trace = scan_trace(self._document.path.parent / file)
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


def _spacing(process: words.ArrivalProcess) -> processes.Spacing:
    if isinstance(process, words.UniformArrivals):
        return processes.Even(process.phase)
    if isinstance(process, words.PoissonArrivals):
        return processes.Gamma()
    if isinstance(process, words.GammaArrivals):
        return processes.Gamma(process.cv)
    if process.spacing == "uniform":
        return processes.Even()
    return processes.Gamma(1.0 if process.cv is None else process.cv)


def _rate(process: words.ArrivalProcess, over_s: float) -> processes.Rate:
    if isinstance(process, words.OnOffArrivals):
        return processes.OnOff(process.per_s, process.on_s, process.off_s)
    if isinstance(process, words.RampArrivals):
        return processes.Ramp(*process.per_s, over_s)
    return processes.Steady(process.per_s)


def _burst(process: words.ArrivalProcess) -> processes.Burst | None:
    if not isinstance(process, words.BurstArrivals):
        return None
    return processes.Burst(process.burst.probability, *process.burst.size)


def _interactions(described: words.InteractionsOf | None) -> Interactions | None:
    if described is None:
        return None
    return Interactions(tuple(CallsShare(*share.calls, share.weight) for share in described.calls), described.think_s)
