from __future__ import annotations

import pytest

from headgate.demo.measure import RunReport, Sample, report
from headgate.demo.verdict import judge


def run(ttft_s: float, tokens: int, failed: bool = False) -> RunReport:
    quiet = Sample("quiet", "http", 0.0, ttft_s, 10.0, 10, tokens, [ttft_s])
    flood = Sample("flood", "http", 0.0, 5.0, 10.0, 10, tokens, [5.0], error="queue_full" if failed else None)
    return report([quiet, flood])


@pytest.mark.parametrize(
    ("after", "passed"),
    [
        (run(2.0, 100), True),
        (run(2.01, 100), False),
        (run(1.0, 89), True),
        (run(1.0, 80), False),
        (run(1.0, 200, failed=True), False),
    ],
)
def test_each_promise_can_be_broken(after: RunReport, passed: bool) -> None:
    assert judge(run(4.0, 100), after, "quiet").passed is passed


def test_a_quiet_tenant_without_a_first_token_fails() -> None:
    silent = report([Sample("quiet", "http", 0.0, None, 1.0, error="worker_failed")])
    verdict = judge(run(4.0, 100), silent, "quiet")
    assert not verdict.passed
    assert {check.name for check in verdict.checks if not check.passed} >= {"quiet_ttft_p99", "all_answered"}
