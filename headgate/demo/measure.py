"""The figures of a played workload, and the verdict of the demo on them. Pure: samples in, a report out.

Times are seconds since the play began.

A tenant is backlogged while one of its requests has arrived and has no token yet. The share of service is measured over
the time in which all tenants were backlogged: only then does each want more than it gets, so that its share depends on
the scheduling and not on its demand. Service is weighted tokens (dispatcher/policies/service.py).

The verdict: did headgate keep its promises on this machine, with this workload?

The engine's speed is measured before and after each run (the calibrations). Both runs have the same requests, so a
machine that becomes slower or faster changes latency and throughput as headgate's policies do. Therefore:

- Throughput is compared relative to the calibrations of its own run.
- If the calibrations of both runs differ by more than _SPEED_CHANGE_MAX, a latency is compared in a second way too: as
  the work that the engine can do in this time. The demo passes only if both comparisons pass.
- If a comparison then fails, the outcome is `inconclusive`, not `failed`: the machine may be the reason. A request
  that was not answered is a failure on any machine.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from dispatcher.policies.percentiles import percentile
from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction


@dataclass(slots=True)
class Sample:
    """One request as its tenant saw it. A time is None if its event did not happen."""

    tenant: str
    face: str
    arrival_s: float
    first_token_s: float | None = None
    end_s: float | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    token_times_s: list[float] = field(default_factory=list)
    error: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token; None for answers that are not streamed."""
        if self.face != "http" or self.first_token_s is None:
            return None
        return self.first_token_s - self.arrival_s

    @property
    def latency_s(self) -> float | None:
        return None if self.end_s is None or self.error else self.end_s - self.arrival_s


@dataclass(frozen=True, slots=True)
class TenantReport:
    requests: int
    served: int
    failed: int
    input_tokens: int
    output_tokens: int
    service: float
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    latency_p50_s: float | None
    latency_p99_s: float | None
    share_while_backlogged: float | None


@dataclass(frozen=True, slots=True)
class RunReport:
    """`backlogged_s`: seconds in which all tenants were backlogged. Throughput counts input and output tokens.

    `calibrations_per_s`: service per second of the full engine, measured before and after the run.
    """

    tenants: dict[str, TenantReport]
    total_time_s: float
    throughput_tokens_per_s: float
    backlogged_s: float
    calibrations_per_s: tuple[float, ...] = ()

    @property
    def calibration_per_s(self) -> float:
        """The mean of the calibrations; there must be one."""
        return sum(self.calibrations_per_s) / len(self.calibrations_per_s)

    @property
    def throughput_of_calibration(self) -> float:
        """Service per second of the whole run, as a part of the calibration."""
        served = sum(tenant.service for tenant in self.tenants.values())
        return served / self.total_time_s / self.calibration_per_s if self.total_time_s else 0.0


def report(
    samples: Sequence[Sample],
    service: ServiceFunction = WEIGHTED_TOKENS,
    *,
    calibrations_per_s: tuple[float, ...] = (),
) -> RunReport:
    names = sorted({sample.tenant for sample in samples})
    together = _overlap([_backlog(sample for sample in samples if sample.tenant == name) for name in names])
    total_time_s = max((sample.end_s or 0.0 for sample in samples), default=0.0)
    tokens = sum(s.input_tokens + s.output_tokens for s in samples if not s.error)
    within = {name: _service_within(samples, name, together, service) for name in names}
    return RunReport(
        tenants={name: _tenant(samples, name, within, service) for name in names},
        total_time_s=total_time_s,
        throughput_tokens_per_s=tokens / total_time_s if total_time_s else 0.0,
        backlogged_s=sum(end - start for start, end in together),
        calibrations_per_s=calibrations_per_s,
    )


def _tenant(samples: Sequence[Sample], name: str, within: dict[str, float], service: ServiceFunction) -> TenantReport:
    own = [sample for sample in samples if sample.tenant == name]
    served = [sample for sample in own if not sample.error]
    ttfts = [sample.ttft_s for sample in served if sample.ttft_s is not None]
    latencies = [sample.latency_s for sample in served if sample.latency_s is not None]
    all_service = sum(within.values())
    return TenantReport(
        requests=len(own),
        served=len(served),
        failed=len(own) - len(served),
        input_tokens=sum(sample.input_tokens for sample in served),
        output_tokens=sum(sample.output_tokens for sample in served),
        service=sum(service(sample.input_tokens, sample.output_tokens) for sample in served),
        ttft_p50_s=percentile(ttfts, 0.5),
        ttft_p99_s=percentile(ttfts, 0.99),
        latency_p50_s=percentile(latencies, 0.5),
        latency_p99_s=percentile(latencies, 0.99),
        share_while_backlogged=within[name] / all_service if all_service else None,
    )


_Spans = list[tuple[float, float]]


def _backlog(samples: Iterable[Sample]) -> _Spans:
    """Return the sorted, disjoint spans in which at least one request had arrived and had no token yet."""
    waits = sorted((s.arrival_s, s.first_token_s or s.end_s or s.arrival_s) for s in samples)
    spans: _Spans = []
    for start, end in waits:
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end))
        elif end > start:
            spans.append((start, end))
    return spans


def _overlap(many: Sequence[_Spans]) -> _Spans:
    if len(many) < 2:
        return []
    common = many[0]
    for spans in many[1:]:
        pairs = ((max(a, c), min(b, d)) for a, b in common for c, d in spans)
        common = [(start, end) for start, end in pairs if end > start]
    return common


def _service_within(samples: Sequence[Sample], name: str, spans: _Spans, service: ServiceFunction) -> float:
    """Return the service that a tenant received inside the spans.

    The prompt's service counts with the first piece. All pieces share the rest equally: a streamed piece may have
    several tokens, because a character that is not complete is held back.
    """
    inside = _membership(spans)
    total = 0.0
    for sample in samples:
        if sample.tenant != name or sample.error:
            continue
        decoded = service(sample.input_tokens, sample.output_tokens) - service(sample.input_tokens, 0)
        for number, time_s in enumerate(sample.token_times_s):
            if inside(time_s):
                total += decoded / len(sample.token_times_s)
                total += service(sample.input_tokens, 0) if number == 0 else 0.0
    return total


def _membership(spans: _Spans) -> Callable[[float], bool]:
    starts = [start for start, _ in spans]
    return lambda time_s: (i := bisect_right(starts, time_s)) > 0 and time_s <= spans[i - 1][1]


_TTFT_RATIO_MAX = 0.5
"""The quiet tenant's P99 time to the first token falls at least by half."""
_THROUGHPUT_RATIO_MIN = 0.9
"""Total throughput, relative to the calibrations, keeps at least nine tenths."""
_SPEED_CHANGE_MAX = 0.25
"""The fastest calibration is at most a quarter above the slowest. Otherwise the machine's speed changed."""


class DemoOutcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class DemoCheck:
    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """`speed_change`: the fastest calibration over the slowest, minus 1."""

    passed: bool
    outcome: DemoOutcome
    speed_change: float
    checks: tuple[DemoCheck, ...]

    @property
    def line(self) -> str:
        """The outcome, and the reason if it is inconclusive."""
        if self.outcome is DemoOutcome.INCONCLUSIVE:
            return f"{self.outcome}: the machine's speed changed by {self.speed_change:.0%}"
        return self.outcome


def judge(without: RunReport, with_headgate: RunReport, quiet: str) -> Verdict:
    """Compare the runs. Both need their calibrations."""
    change = speed_change(without, with_headgate)
    compared = (
        _quiet_check(without, with_headgate, quiet, is_steady=change <= _SPEED_CHANGE_MAX),
        _throughput_check(without, with_headgate),
    )
    answered = _failures_check(with_headgate)
    outcome = _outcome(all(check.passed for check in compared), answered.passed, change)
    return Verdict(outcome is DemoOutcome.PASSED, outcome, change, (*compared, answered))


def speed_change(*runs: RunReport) -> float:
    calibrations = [rate for run in runs for rate in run.calibrations_per_s]
    return max(calibrations) / min(calibrations) - 1


def _outcome(is_better: bool, is_answered: bool, change: float) -> DemoOutcome:
    if not is_answered:
        return DemoOutcome.FAILED
    if is_better:
        return DemoOutcome.PASSED
    return DemoOutcome.FAILED if change <= _SPEED_CHANGE_MAX else DemoOutcome.INCONCLUSIVE


def _quiet_check(without: RunReport, with_headgate: RunReport, quiet: str, *, is_steady: bool) -> DemoCheck:
    before, after = without.tenants[quiet].ttft_p99_s, with_headgate.tenants[quiet].ttft_p99_s
    if before is None or after is None:
        return DemoCheck("quiet_ttft_p99", False, f"{quiet} got no first token in one of the runs")
    ratio = after / before if before else 1.0
    detail = f"{quiet}'s P99 first token: {before:.2f} s without, {after:.2f} s with headgate (ratio {ratio:.2f})"
    if not is_steady:
        in_work = ratio * with_headgate.calibration_per_s / without.calibration_per_s
        detail += f"; the engine's speed changed: counted in its work, the ratio is {in_work:.2f}"
        ratio = max(ratio, in_work)
    return DemoCheck("quiet_ttft_p99", ratio <= _TTFT_RATIO_MAX, detail)


def _throughput_check(without: RunReport, with_headgate: RunReport) -> DemoCheck:
    before, after = without.throughput_of_calibration, with_headgate.throughput_of_calibration
    ratio = after / before if before else 0.0
    detail = (
        f"throughput: {before:.0%} of the measured speed without, {after:.0%} with headgate (ratio {ratio:.2f}); "
        f"{without.throughput_tokens_per_s:.0f} and {with_headgate.throughput_tokens_per_s:.0f} tokens/s"
    )
    return DemoCheck("throughput", ratio >= _THROUGHPUT_RATIO_MIN, detail)


def _failures_check(with_headgate: RunReport) -> DemoCheck:
    failed = {name: tenant.failed for name, tenant in with_headgate.tenants.items() if tenant.failed}
    detail = f"failed: {failed}" if failed else "every request was answered"
    return DemoCheck("all_answered", not failed, detail)
