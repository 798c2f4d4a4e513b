from __future__ import annotations

import pytest

from headgate.demo.measure import DemoOutcome, RunReport, Sample, Verdict, judge, report

STEADY = (10.0, 10.0)


def run(ttft_s: float, tokens: int, failed: bool = False, speeds: tuple[float, float] = STEADY) -> RunReport:
    """`tokens`: of each answer. `speeds`: the calibrations before and after the run."""
    quiet = Sample("quiet", "http", 0.0, ttft_s, 10.0, 0, tokens, [ttft_s])
    flood = Sample("flood", "http", 0.0, 5.0, 10.0, 0, tokens, [5.0], error="queue_full" if failed else None)
    return report([quiet, flood], calibrations_per_s=speeds)


BEFORE = run(4.0, 100)


@pytest.mark.parametrize(
    ("after", "outcome"),
    [
        (run(2.0, 100), DemoOutcome.PASSED),
        (run(2.01, 100), DemoOutcome.FAILED),
        (run(1.0, 90), DemoOutcome.PASSED),
        (run(1.0, 89), DemoOutcome.FAILED),
        (run(1.0, 200, failed=True), DemoOutcome.FAILED),
    ],
)
def test_each_promise_can_be_broken(after: RunReport, outcome: DemoOutcome) -> None:
    verdict = judge(BEFORE, after, "quiet")
    assert verdict.outcome is outcome
    assert verdict.passed is (outcome is DemoOutcome.PASSED)


def test_throughput_is_compared_with_the_engines_speed_of_its_own_run() -> None:
    """The machine has 80 % of its speed in the second run: 80 tokens are as good as 100."""
    assert throughput(judge(BEFORE, run(1.0, 80, speeds=(8.0, 8.0)), "quiet"))
    assert not throughput(judge(BEFORE, run(1.0, 80, speeds=(10.0, 10.0)), "quiet"))


def throughput(verdict: Verdict) -> bool:
    return next(check.passed for check in verdict.checks if check.name == "throughput")


@pytest.mark.parametrize("speeds", [(10.0, 14.0), (14.0, 10.0), (14.0, 14.0)])
def test_a_comparison_that_fails_while_the_speed_changes_is_inconclusive(speeds: tuple[float, float]) -> None:
    verdict = judge(BEFORE, run(3.0, 100, speeds=speeds), "quiet")
    assert (verdict.outcome, verdict.passed) == (DemoOutcome.INCONCLUSIVE, False)
    assert verdict.line == "inconclusive: the machine's speed changed by 40%"


def test_a_request_that_is_not_answered_fails_at_any_speed() -> None:
    assert judge(BEFORE, run(3.0, 100, failed=True, speeds=(10.0, 14.0)), "quiet").outcome is DemoOutcome.FAILED


def test_a_faster_machine_is_no_merit_of_headgate() -> None:
    """The wait falls to 45 % on a machine that became 1.4 times as fast: 63 % of the work."""
    assert judge(BEFORE, run(1.8, 140, speeds=(14.0, 14.0)), "quiet").outcome is DemoOutcome.INCONCLUSIVE
    assert judge(BEFORE, run(1.4, 140, speeds=(14.0, 14.0)), "quiet").outcome is DemoOutcome.PASSED


def test_a_quiet_tenant_without_a_first_token_fails() -> None:
    silent = report([Sample("quiet", "http", 0.0, None, 1.0, error="worker_failed")], calibrations_per_s=STEADY)
    verdict = judge(BEFORE, silent, "quiet")
    assert verdict.outcome is DemoOutcome.FAILED
    assert {check.name for check in verdict.checks if not check.passed} >= {"quiet_ttft_p99", "all_answered"}
