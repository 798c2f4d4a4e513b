"""The verdict of the fairness smoke test, which counts requests and no seconds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.demo.measure import Sample
from headgate.doctor.after import AHEAD_MAX, verdict
from headgate.doctor.finding import CheckResult


def sample(tenant: str, arrival_s: float, first_token_s: float | None, error: str | None = None) -> Sample:
    return Sample(tenant, "http", arrival_s, first_token_s, error=error)


def flood(*firsts_s: float | None) -> list[Sample]:
    return [sample("flood", 0.0, first_s) for first_s in firsts_s]


def result(samples: list[Sample]) -> CheckResult:
    return verdict(samples, "flood", "quiet").result


WAITED = flood(*range(1, 33))
"""A flood of which one request has its first token each second."""
EARLY = sample("quiet", 8.5, 10.5)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        pytest.param([*WAITED, sample("quiet", 0.5, 33.0)], CheckResult.FAILED, id="first come, first served"),
        pytest.param([*WAITED, EARLY], CheckResult.OK, id="the quiet request passes the flood"),
        pytest.param([*WAITED, EARLY, sample("quiet", 8.5, 40.0)], CheckResult.FAILED, id="one of two is late"),
        pytest.param([*flood(0.1, 0.2), sample("quiet", 0.5, 0.6)], CheckResult.WARNING, id="no flood that waits"),
        pytest.param(
            [*flood(1.0, 2.0, 3.0, 4.0), *100 * [sample("flood", 0.0, None, "queue_full")], sample("quiet", 0.5, 5.0)],
            CheckResult.FAILED,
            id="refused requests of the flood do not count",
        ),
    ],
)
def test_the_verdict(samples: list[Sample], expected: CheckResult) -> None:
    assert result(samples) is expected


def test_a_quiet_request_that_failed_fails() -> None:
    found = verdict([*flood(1.0), sample("quiet", 0.5, None, "no_workers")], "flood", "quiet")
    assert found.result is CheckResult.FAILED
    assert "no_workers" in found.seen


@given(st.lists(st.floats(1.0, 100.0), min_size=1, max_size=40), st.floats(1.0, 100.0))
def test_the_verdict_is_the_part_of_the_flood_that_went_ahead(firsts_s: list[float], quiet_s: float) -> None:
    ahead = sum(first_s < quiet_s for first_s in firsts_s) / len(firsts_s)
    expected = CheckResult.FAILED if ahead > AHEAD_MAX else CheckResult.OK
    assert result([*flood(*firsts_s), sample("quiet", 0.5, quiet_s)]) is expected
