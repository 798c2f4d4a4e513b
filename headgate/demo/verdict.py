"""The verdict of the demo: did headgate keep its promises on this machine, with this workload?

The engine's speed is measured before and after each run (the calibrations). Both runs have the same requests, so a
machine that becomes slower or faster changes latency and throughput as headgate's policies do. Therefore:

- Throughput is compared relative to the calibrations of its own run.
- If the calibrations of both runs differ by more than SPEED_CHANGE_MAX, a latency is compared in a second way too: as
  the work that the engine can do in this time. The demo passes only if both comparisons pass.
- If a comparison then fails, the outcome is `inconclusive`, not `failed`: the machine may be the reason. A request
  that was not answered is a failure on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headgate.demo.measure import RunReport

TTFT_RATIO_MAX = 0.5
"""The quiet tenant's P99 time to the first token falls at least by half."""
THROUGHPUT_RATIO_MIN = 0.9
"""Total throughput, relative to the calibrations, keeps at least nine tenths."""
SPEED_CHANGE_MAX = 0.25
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
        _quiet_check(without, with_headgate, quiet, is_steady=change <= SPEED_CHANGE_MAX),
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
    return DemoOutcome.FAILED if change <= SPEED_CHANGE_MAX else DemoOutcome.INCONCLUSIVE


def _quiet_check(without: RunReport, with_headgate: RunReport, quiet: str, *, is_steady: bool) -> DemoCheck:
    before, after = without.tenants[quiet].ttft_p99_s, with_headgate.tenants[quiet].ttft_p99_s
    if before is None or after is None:
        return DemoCheck("quiet_ttft_p99", False, f"{quiet} got no first token in one of the runs")
    ratio = after / before if before else 1.0
    detail = f"{quiet}'s P99 first token: {before:.2f} s without, {after:.2f} s with headgate (ratio {ratio:.2f})"
    if not is_steady:
        in_work = ratio * with_headgate.calibration_per_s / without.calibration_per_s
        detail += f"; ratio {in_work:.2f} in work of the engine, whose speed changed"
        ratio = max(ratio, in_work)
    return DemoCheck("quiet_ttft_p99", ratio <= TTFT_RATIO_MAX, detail)


def _throughput_check(without: RunReport, with_headgate: RunReport) -> DemoCheck:
    before, after = without.throughput_of_calibration, with_headgate.throughput_of_calibration
    ratio = after / before if before else 0.0
    detail = (
        f"throughput: {before:.0%} of the measured speed without, {after:.0%} with headgate (ratio {ratio:.2f}); "
        f"{without.throughput_tokens_per_s:.0f} and {with_headgate.throughput_tokens_per_s:.0f} tokens/s"
    )
    return DemoCheck("throughput", ratio >= THROUGHPUT_RATIO_MIN, detail)


def _failures_check(with_headgate: RunReport) -> DemoCheck:
    failed = {name: tenant.failed for name, tenant in with_headgate.tenants.items() if tenant.failed}
    detail = f"failed: {failed}" if failed else "every request was answered"
    return DemoCheck("all_answered", not failed, detail)
