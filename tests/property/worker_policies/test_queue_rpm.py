"""RPM(n): accepted requests, against a list of all times."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.policies.fairness import baselines
from gpu_worker.policies.fairness.baselines import RequestsPerMinute
from gpu_worker.policies.fairness.interface import QueueRequest

arrivals = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 7.0, 20.0, 59.5, 60.0, 61.0])), max_size=80)


@settings(max_examples=200, deadline=None)
@given(arrivals=arrivals, most=st.integers(1, 4))
def test_at_most_n_of_a_tenant_in_a_trailing_minute_and_no_fewer(arrivals: list[tuple[int, float]], most: int) -> None:
    policy = RequestsPerMinute(most)
    accepted: dict[str, list[float]] = {}
    now_s = 0.0
    for number, (tenant_number, later_s) in enumerate(arrivals):
        now_s += later_s
        tenant = f"t{tenant_number}"
        times = accepted.setdefault(tenant, [])
        below_limit = len([time for time in times if now_s - 60 < time]) < most
        assert policy.enqueue(QueueRequest(f"r{number}", tenant, 1), now_s) == below_limit
        assert policy.holds(f"r{number}") == below_limit
        if below_limit:
            times.append(now_s)
    assert policy.waiting == sum(len(times) for times in accepted.values())


def test_a_refused_request_leaves_nothing_behind() -> None:
    policy = RequestsPerMinute(1)
    assert policy.enqueue(QueueRequest("r0", "a", 1), 0.0)
    assert not policy.enqueue(QueueRequest("r1", "a", 1), 1.0)
    policy.cancel("r0")
    assert not policy.enqueue(QueueRequest("r1", "a", 1), 59.9), "the cancelled request was accepted and counts"
    assert (policy.waiting, policy.peek()) == (0, None)
    assert policy.enqueue(QueueRequest("r1", "a", 1), 60.0)


def test_empty_minutes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = RequestsPerMinute(2)
    for number in range(50):
        policy.enqueue(QueueRequest(f"r{number}", f"t{number}", 1), float(number))
    policy.enqueue(QueueRequest("late", "late", 1), 109.0)
    assert list(policy._accepted_s) == ["late"]
    monkeypatch.setattr(baselines, "WINDOWS_KEPT_MAX", 5)
    for number in range(20):
        policy.enqueue(QueueRequest(f"s{number}", f"t{number}", 1), 110.0)
    assert len(policy._accepted_s) <= 6
