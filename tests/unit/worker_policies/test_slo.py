"""What counts as served as promised: one sample a request, misses that are not over yet, a window, nearest ranks."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.policies.percentiles import percentile
from dispatcher.policies.tiers import Tier
from gpu_worker.policies.slo.monitor import TARGETS, Attainment, Slo, SloMonitor, SloSettings, SloTargets

P, S, B = Tier.PREMIUM, Tier.STANDARD, Tier.BACKGROUND


def served(
    monitor: SloMonitor,
    name: str,
    at_s: float,
    *,
    tier: Tier = P,
    ttft_s: float = 0.1,
    tokens: int = 1,
    tpot_s: float = 0.01,
) -> float:
    """One request to its end. Returns when that was."""
    monitor.arrived(name, tier, at_s)
    monitor.first_token(name, at_s + ttft_s)
    end_s = at_s + ttft_s + (tokens - 1) * tpot_s
    monitor.ended(name, end_s, tokens)
    return end_s


def test_the_targets_are_the_sources() -> None:
    assert [(TARGETS[P].of(kind), TARGETS[S].of(kind), TARGETS[B].of(kind)) for kind in Slo] == [
        (0.2, 0.5, inf),
        (0.03, 0.08, inf),
        (5.0, 15.0, 60.0),
    ]


def test_a_request_is_one_sample_however_long_it_is() -> None:
    monitor = SloMonitor()
    end_s = served(monitor, "long", 0.0, tokens=1001, tpot_s=0.05)
    for number in range(3):
        end_s = max(end_s, served(monitor, f"short {number}", 50.0, tokens=2))
    assert monitor.attainment(P, Slo.TPOT, end_s) == Attainment(3, 4)
    assert monitor.attainment(P, Slo.TTFT, 50.2) == Attainment(4, 4)


def test_what_each_kind_measures() -> None:
    monitor = SloMonitor()
    end_s = served(monitor, "r", 10.0, ttft_s=0.15, tokens=5, tpot_s=0.02)
    found = {kind: monitor.percentile_s(P, kind, end_s, 0.5) for kind in Slo}
    assert found == {Slo.TTFT: pytest.approx(0.15), Slo.TPOT: pytest.approx(0.02), Slo.E2E: pytest.approx(0.23)}


def test_a_single_token_has_no_pace() -> None:
    monitor = SloMonitor()
    assert monitor.attainment(P, Slo.TPOT, served(monitor, "r", 0.0)) == Attainment(0, 0)


def test_a_first_token_told_again_counts_once() -> None:
    monitor = SloMonitor()
    monitor.arrived("r", P, 0.0)
    monitor.first_token("r", 0.1)
    monitor.first_token("r", 9.0)
    assert monitor.attainment(P, Slo.TTFT, 9.0) == Attainment(1, 1)


def test_whoever_waits_beyond_the_target_is_a_miss_already() -> None:
    monitor = SloMonitor()
    for number in range(30):
        monitor.arrived(f"r{number}", P, number * 0.01)
    assert monitor.attainment(P, Slo.TTFT, 0.2) == Attainment(0, 0)
    assert monitor.attainment(P, Slo.TTFT, 0.305) == Attainment(0, 11)
    assert not monitor.at_risk(P, 0.305)
    assert monitor.at_risk(P, 1.0), "a stalled engine is no healthy one"
    monitor.first_token("r0", 2.0)
    assert monitor.attainment(P, Slo.TTFT, 2.0) == Attainment(0, 30), "late and sampled, it is still one"
    assert monitor.attainment(P, Slo.TTFT, 100.0) == Attainment(0, 29), "the sample leaves the window"


def test_whoever_runs_beyond_the_end_promised_is_a_miss_of_that() -> None:
    monitor = SloMonitor()
    monitor.arrived("r", P, 0.0)
    monitor.first_token("r", 0.1)
    assert monitor.attainment(P, Slo.E2E, 4.0) == Attainment(0, 0)
    assert monitor.attainment(P, Slo.E2E, 6.0) == Attainment(0, 1)


def test_who_leaves_is_a_miss_of_what_it_waited_beyond_and_else_says_nothing() -> None:
    monitor = SloMonitor()
    for name in ("patient", "hasty", "begun"):
        monitor.arrived(name, P, 0.0)
    monitor.first_token("begun", 0.1)
    monitor.abandoned("hasty", 0.15)
    monitor.abandoned("patient", 0.3)
    monitor.abandoned("begun", 0.4)
    assert monitor.attainment(P, Slo.TTFT, 0.4) == Attainment(1, 2)
    assert monitor.attainment(P, Slo.E2E, 0.4) == Attainment(0, 0)
    monitor.abandoned("nobody", 1.0)
    monitor.ended("nobody", 1.0, 5)
    monitor.first_token("nobody", 1.0)
    assert monitor.attainment(P, Slo.TTFT, 1.0) == Attainment(1, 2)


def test_the_window_is_in_time_and_bounded_in_count() -> None:
    monitor = SloMonitor(SloSettings(window_s=10.0, samples_max=5))
    for second in range(8):
        served(monitor, f"r{second}", float(second), ttft_s=0.3 if second < 4 else 0.1)
    assert monitor.attainment(P, Slo.TTFT, 7.2) == Attainment(4, 5)
    assert monitor.attainment(P, Slo.TTFT, 7.2, since_s=5.0) == Attainment(3, 3)
    assert monitor.attainment(P, Slo.TTFT, 16.0) == Attainment(2, 2)
    assert monitor.attainment(P, Slo.TTFT, 30.0) == Attainment(0, 0)
    assert monitor.attainment(P, Slo.TTFT, 30.0).share == 1.0


def test_at_risk_needs_samples_and_more_than_one_miss() -> None:
    monitor = SloMonitor(SloSettings(samples_min=20, misses_min=2, goal=0.9))
    for number in range(18):
        served(monitor, f"good {number}", 0.0)
    served(monitor, "late", 0.0, ttft_s=0.5)
    assert not monitor.at_risk(P, 1.0)
    served(monitor, "later", 0.0, ttft_s=0.5)
    assert not monitor.at_risk(P, 1.0), "18 of 20 is the goal, not below it"
    served(monitor, "latest", 0.0, ttft_s=0.5)
    assert monitor.at_risk(P, 1.0)
    assert not monitor.at_risk(S, 1.0)


def test_a_slow_pace_alone_is_a_risk_a_long_answer_is_none() -> None:
    slow, long = SloMonitor(), SloMonitor()
    for number in range(20):
        served(slow, f"r{number}", 0.0, tokens=10, tpot_s=0.05)
        served(long, f"r{number}", 0.0, tokens=300, tpot_s=0.02)
    assert slow.at_risk(P, 1.0)
    assert long.attainment(P, Slo.E2E, 7.0) == Attainment(0, 20)
    assert not long.at_risk(P, 7.0)


def test_a_tier_without_targets_is_never_at_risk() -> None:
    monitor = SloMonitor()
    for number in range(50):
        monitor.arrived(f"w{number}", B, 0.0)
        served(monitor, f"r{number}", 0.0, tier=Tier.SYSTEM, ttft_s=100.0)
    assert not monitor.at_risk(B, 1000.0)
    assert not monitor.at_risk(Tier.SYSTEM, 100.0)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=60), st.floats(0.01, 1.0))
def test_percentiles_are_of_the_samples(seconds: list[float], fraction: float) -> None:
    monitor = SloMonitor()
    for number, each in enumerate(seconds):
        monitor.arrived(str(number), P, 0.0)
        monitor.first_token(str(number), each)
    found = monitor.percentile_s(P, Slo.TTFT, 0.0, fraction)
    assert found == percentile(seconds, fraction)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["arrived", "first", "ended", "left"]), st.floats(0, 1))))
def test_never_more_misses_and_samples_than_requests(calls: list[tuple[int, str, float]]) -> None:
    monitor, now_s, here, arrivals = SloMonitor(), 0.0, set(), 0
    for number, call, pause_s in calls:
        name, now_s = str(number), now_s + pause_s
        if call == "arrived" and name not in here:
            monitor.arrived(name, P, now_s)
            here.add(name)
            arrivals += 1
        elif call == "first":
            monitor.first_token(name, now_s)
        elif call in ("ended", "left") and name in here:
            monitor.ended(name, now_s, 3) if call == "ended" else monitor.abandoned(name, now_s)
            here.discard(name)
        for kind in Slo:
            found = monitor.attainment(P, kind, now_s)
            assert 0 <= found.met <= found.samples <= arrivals


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SloTargets(ttft_s=0.0), "above 0"),
        (lambda: SloSettings(window_s=0.0), "window_s"),
        (lambda: SloSettings(goal=1.5), "goal"),
        (lambda: SloSettings(samples_min=0), "samples_min"),
    ],
)
def test_what_cannot_be_is_refused(make: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()  # type: ignore[operator]
