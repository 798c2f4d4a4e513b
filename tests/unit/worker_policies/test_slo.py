"""Attainment of the targets, the measured capacity, and which tiers are refused while others are at risk."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import inf, sin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.policies.percentiles import percentile
from dispatcher.policies.tiers import Tier
from gpu_worker.policies.capacity import MeasuredCapacity
from gpu_worker.policies.shedding import Shedder, ShedSettings
from gpu_worker.policies.slo import TARGETS, Attainment, Slo, SloMonitor, SloSettings, SloTargets

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
    """Serve one request, and return the time of its end."""
    monitor.on_arrived(name, tier, at_s)
    monitor.first_token(name, at_s + ttft_s)
    end_s = at_s + ttft_s + (tokens - 1) * tpot_s
    monitor.on_ended(name, end_s, tokens)
    return end_s


def test_the_targets_are_the_sources() -> None:
    assert [(TARGETS[P].of(kind), TARGETS[S].of(kind), TARGETS[B].of(kind)) for kind in Slo] == [
        (0.2, 0.5, inf),
        (0.03, 0.08, inf),
        (5.0, 15.0, 60.0),
    ]


def test_a_request_is_one_sample_whatever_its_length() -> None:
    monitor = SloMonitor()
    end_s = served(monitor, "long", 0.0, tokens=1001, tpot_s=0.05)
    for number in range(3):
        end_s = max(end_s, served(monitor, f"short {number}", 50.0, tokens=2))
    assert monitor.attainment(P, Slo.TPOT, end_s) == Attainment(3, 4)
    assert monitor.attainment(P, Slo.TTFT, 50.2) == Attainment(4, 4)


def test_the_measures_of_each_kind() -> None:
    monitor = SloMonitor()
    end_s = served(monitor, "r", 10.0, ttft_s=0.15, tokens=5, tpot_s=0.02)
    found = {kind: monitor.percentile_s(P, kind, end_s, 0.5) for kind in Slo}
    assert found == {Slo.TTFT: pytest.approx(0.15), Slo.TPOT: pytest.approx(0.02), Slo.E2E: pytest.approx(0.23)}


def test_a_single_token_has_no_time_per_token() -> None:
    monitor = SloMonitor()
    assert monitor.attainment(P, Slo.TPOT, served(monitor, "r", 0.0)) == Attainment(0, 0)


def test_a_repeated_first_token_counts_once() -> None:
    monitor = SloMonitor()
    monitor.on_arrived("r", P, 0.0)
    monitor.first_token("r", 0.1)
    monitor.first_token("r", 9.0)
    assert monitor.attainment(P, Slo.TTFT, 9.0) == Attainment(1, 1)


def test_a_request_without_first_token_is_a_miss_once_it_is_overdue() -> None:
    monitor = SloMonitor()
    for number in range(30):
        monitor.on_arrived(f"r{number}", P, number * 0.01)
    assert monitor.attainment(P, Slo.TTFT, 0.2) == Attainment(0, 0)
    assert monitor.attainment(P, Slo.TTFT, 0.305) == Attainment(0, 11)
    assert not monitor.at_risk(P, 0.305)
    assert monitor.at_risk(P, 1.0), "a stalled engine is at risk"
    monitor.first_token("r0", 2.0)
    assert monitor.attainment(P, Slo.TTFT, 2.0) == Attainment(0, 30), "sampled now, it is still one miss"
    assert monitor.attainment(P, Slo.TTFT, 100.0) == Attainment(0, 29), "the sample leaves the window"


def test_a_running_request_is_a_miss_once_its_end_is_overdue() -> None:
    monitor = SloMonitor()
    monitor.on_arrived("r", P, 0.0)
    monitor.first_token("r", 0.1)
    assert monitor.attainment(P, Slo.E2E, 4.0) == Attainment(0, 0)
    assert monitor.attainment(P, Slo.E2E, 6.0) == Attainment(0, 1)


def test_an_abandoned_request_misses_only_the_targets_that_its_wait_exceeded() -> None:
    monitor = SloMonitor()
    for name in ("patient", "hasty", "begun"):
        monitor.on_arrived(name, P, 0.0)
    monitor.first_token("begun", 0.1)
    monitor.on_abandoned("hasty", 0.15)
    monitor.on_abandoned("patient", 0.3)
    monitor.on_abandoned("begun", 0.4)
    assert monitor.attainment(P, Slo.TTFT, 0.4) == Attainment(1, 2)
    assert monitor.attainment(P, Slo.E2E, 0.4) == Attainment(0, 0)
    monitor.on_abandoned("unknown", 1.0)
    monitor.on_ended("unknown", 1.0, 5)
    monitor.first_token("unknown", 1.0)
    assert monitor.attainment(P, Slo.TTFT, 1.0) == Attainment(1, 2)


def test_the_window_is_limited_in_time_and_in_samples() -> None:
    monitor = SloMonitor(SloSettings(window_s=10.0, samples_max=5))
    for second in range(8):
        served(monitor, f"r{second}", float(second), ttft_s=0.3 if second < 4 else 0.1)
    assert monitor.attainment(P, Slo.TTFT, 7.2) == Attainment(4, 5)
    assert monitor.attainment(P, Slo.TTFT, 7.2, since_s=5.0) == Attainment(3, 3)
    assert monitor.attainment(P, Slo.TTFT, 16.0) == Attainment(2, 2)
    assert monitor.attainment(P, Slo.TTFT, 30.0) == Attainment(0, 0)
    assert monitor.attainment(P, Slo.TTFT, 30.0).share == 1.0


def test_a_risk_needs_enough_samples_and_misses() -> None:
    monitor = SloMonitor(SloSettings(samples_min=20, misses_min=2, goal=0.9))
    for number in range(18):
        served(monitor, f"good {number}", 0.0)
    served(monitor, "late", 0.0, ttft_s=0.5)
    assert not monitor.at_risk(P, 1.0)
    served(monitor, "later", 0.0, ttft_s=0.5)
    assert not monitor.at_risk(P, 1.0), "18 of 20 equals the goal"
    served(monitor, "latest", 0.0, ttft_s=0.5)
    assert monitor.at_risk(P, 1.0)
    assert not monitor.at_risk(S, 1.0)


def test_slow_tokens_are_a_risk_and_long_answers_are_none() -> None:
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
        monitor.on_arrived(f"w{number}", B, 0.0)
        served(monitor, f"r{number}", 0.0, tier=Tier.SYSTEM, ttft_s=100.0)
    assert not monitor.at_risk(B, 1000.0)
    assert not monitor.at_risk(Tier.SYSTEM, 100.0)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=60), st.floats(0.01, 1.0))
def test_percentiles_are_of_the_samples(seconds: list[float], fraction: float) -> None:
    monitor = SloMonitor()
    for number, each in enumerate(seconds):
        monitor.on_arrived(str(number), P, 0.0)
        monitor.first_token(str(number), each)
    found = monitor.percentile_s(P, Slo.TTFT, 0.0, fraction)
    assert found == percentile(seconds, fraction)


CALLS = ["arrived", "first", "ended", "abandoned"]


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(CALLS), st.floats(0, 1))))
def test_never_more_misses_and_samples_than_requests(calls: list[tuple[int, str, float]]) -> None:
    monitor, now_s, here, arrivals = SloMonitor(), 0.0, set(), 0
    for number, call, pause_s in calls:
        name, now_s = str(number), now_s + pause_s
        if call == "arrived" and name not in here:
            monitor.on_arrived(name, P, now_s)
            here.add(name)
            arrivals += 1
        elif call == "first":
            monitor.first_token(name, now_s)
        elif call in ("ended", "abandoned") and name in here:
            monitor.on_ended(name, now_s, 3) if call == "ended" else monitor.on_abandoned(name, now_s)
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
def test_an_impossible_setting_is_refused(make: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()  # type: ignore[operator]


LATE = {P: 0.5, S: 1.0}


class Load:
    """Every 0.1 s one request of each accepted tier, in time or late; then the shedder observes."""

    def __init__(self, settings: ShedSettings | None = None) -> None:
        self.shedder = Shedder(SloMonitor(SloSettings(window_s=20.0)), settings)
        self.now_s = 0.0
        self.requests = 0
        self.levels = [0]

    def run(self, seconds: float, *late: Tier, share: Callable[[float], float] = lambda _: 1.0) -> None:
        """`late`: the tiers with late requests. `share`: the fraction of late ones, by the time."""
        for _ in range(round(seconds * 10)):
            self.now_s = round(self.now_s + 0.1, 3)
            for tier in (P, S):
                if self.shedder.sheds(tier):
                    continue
                self.requests += 1
                is_late = tier in late and self.requests % 100 < 100 * share(self.now_s)
                taken_s = LATE[tier] if is_late else 0.01
                self.shedder.monitor.on_arrived(str(self.requests), tier, self.now_s - taken_s)
                self.shedder.monitor.first_token(str(self.requests), self.now_s)
                self.shedder.monitor.on_abandoned(str(self.requests), self.now_s)
            self.shedder.observe(self.now_s)
            if self.levels[-1] != self.shedder.level:
                self.levels.append(self.shedder.level)

    def shed(self) -> list[Tier]:
        return [tier for tier in Tier if self.shedder.sheds(tier)]


def test_no_tier_is_shed_without_risk() -> None:
    world = Load()
    world.run(60)
    assert world.shed() == []


def test_premium_at_risk_sheds_background_and_then_standard() -> None:
    world = Load()
    world.run(5, P)
    assert world.shed() == [B]
    world.run(4, P)
    assert world.shed() == [B]
    world.run(10, P)
    assert set(world.shed()) == {B, S}
    world.run(300, P)
    assert set(world.shed()) == {B, S}, "premium and the system tier are never shed"


def test_standard_at_risk_sheds_background_alone() -> None:
    world = Load()
    world.run(120, S)
    assert world.shed() == [B]


def test_standard_is_not_shed_for_samples_before_background_was_shed() -> None:
    world = Load()
    world.run(3, P)
    assert world.shed() == [B]
    world.run(60)
    assert 2 not in world.levels


def test_each_level_falls_after_a_calm_interval() -> None:
    world = Load()
    world.run(60, P)
    assert world.shedder.level == 2
    world.run(20 + 29)
    assert world.shedder.level == 2
    world.run(3)
    assert world.shedder.level == 1
    world.run(27)
    assert world.shedder.level == 1
    world.run(3)
    assert (world.shedder.level, world.levels) == (0, [0, 1, 2, 1, 0])


def test_late_standard_requests_do_not_keep_level_2() -> None:
    world = Load()
    world.run(60, P, S)
    world.run(120, S)
    assert world.shedder.level == 1


@pytest.mark.parametrize("period_s", [2, 5, 10, 20, 40])
def test_attainment_that_swings_faster_than_the_calm_interval_changes_no_level(period_s: int) -> None:
    world = Load()
    world.run(600, S, share=lambda now_s: 1.0 if sin(6.283 * now_s / period_s) > 0 else 0.0)
    assert world.levels == [0, 1]


def test_a_permanent_overload_is_tried_less_and_less_often() -> None:
    world = Load(ShedSettings(calm_s=10.0, calm_max_s=160.0))
    falls = []
    for _ in range(40):
        before = world.shedder.level
        world.run(10, *([S] if not world.shedder.sheds(B) else []))
        if world.shedder.level < before:
            falls.append(world.now_s)
    pauses = [later - sooner for sooner, later in pairwise(falls)]
    assert len(falls) >= 3
    assert pauses == sorted(pauses), pauses
    assert pauses[-1] > 2 * pauses[0]


def test_a_recovery_that_lasts_restores_the_calm_interval() -> None:
    world = Load(ShedSettings(calm_s=10.0))
    for _ in range(2):
        world.run(5, S)
        world.run(31)
    assert world.levels == [0, 1, 0, 1]
    world.run(60)
    world.run(5, S)
    world.run(31)
    assert world.levels == [0, 1, 0, 1, 0, 1, 0], "the calm interval is ten seconds again, not twenty"


@given(st.lists(st.tuples(st.floats(0.1, 20), st.sampled_from([(), (P,), (S,), (P, S)])), max_size=25))
def test_the_level_falls_at_most_once_per_calm_interval(stretches: list[tuple[float, tuple[Tier, ...]]]) -> None:
    world = Load(ShedSettings(calm_s=5.0))
    for seconds, late in stretches:
        world.run(seconds, *late)
        assert not world.shedder.sheds(P)
        assert not world.shedder.sheds(Tier.SYSTEM)
        assert world.shedder.sheds(B) or not world.shedder.sheds(S), "background is shed first"
    falls = sum(later < sooner for sooner, later in pairwise(world.levels))
    assert falls <= 2 + world.now_s / 5.0
    assert all(abs(later - sooner) == 1 for sooner, later in pairwise(world.levels))


def test_shedding_can_be_switched_off() -> None:
    world = Load(ShedSettings(enabled=False))
    world.run(60, P, S)
    assert world.shed() == []


def shedding() -> Shedder:
    world = Load()
    world.run(5, P)
    return world.shedder


def test_retry_after_counts_the_backlog_of_more_urgent_tiers() -> None:
    waiting = {P: 1000.0, S: 2000.0, B: 4000.0, Tier.SYSTEM: 500.0}
    shedder = shedding()
    at_s = 100.0  # the calm interval is over, so only the backlog counts
    assert shedder.retry_after_s(B, waiting, 50.0, at_s) == 7500 / 50
    assert shedder.retry_after_s(S, waiting, 50.0, at_s) == 3500 / 50


def test_retry_after_is_within_its_bounds() -> None:
    shedder = shedding()
    assert shedder.retry_after_s(B, {}, 50.0, 100.0) == 1.0
    assert shedder.retry_after_s(B, {}, 0.0, 100.0) == 1.0
    assert shedder.retry_after_s(B, {B: 1.0}, 0.0, 100.0) == 600.0
    assert shedder.retry_after_s(B, {B: 1e9}, 1.0, 100.0) == 600.0


def test_retry_after_is_not_before_the_tier_can_return() -> None:
    shedder = shedding()
    assert shedder.retry_after_s(B, {}, 50.0, 5.0) == pytest.approx(30.0, abs=0.6)
    world = Load()
    world.run(60, P)
    assert world.shedder.retry_after_s(B, {}, 50.0, 60.0) == pytest.approx(60.0, abs=0.6)
    assert world.shedder.retry_after_s(S, {}, 50.0, 60.0) == pytest.approx(30.0, abs=0.6)
    assert world.shedder.retry_after_s(P, {}, 50.0, 60.0) == 1.0


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"patience_s": -1.0}, "patience_s"),
        ({"calm_s": 20.0, "calm_max_s": 10.0}, "calm_max_s"),
        ({"retry_min_s": 700.0}, "retry_max_s"),
    ],
)
def test_an_impossible_shed_setting_is_refused(fields: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ShedSettings(**fields)  # type: ignore[arg-type]


def test_the_best_stretch_that_was_full_at_both_ends() -> None:
    capacity = MeasuredCapacity()
    assert capacity.observe(0, 0, saturated=True) == 0
    assert capacity.observe(2, 100, saturated=True) == 50
    assert capacity.observe(4, 1000, saturated=False) == 50  # it ran dry somewhere in between
    assert capacity.observe(6, 2000, saturated=True) == 50
    assert capacity.observe(8, 2200, saturated=True) == 100


def test_the_prompts_of_a_new_batch_are_no_rate_that_a_worker_keeps() -> None:
    """Reports may follow each other closely, as those that a gate asks for."""
    capacity = MeasuredCapacity(stretch_s=5)
    capacity.observe(0, 0, saturated=True)
    assert capacity.observe(0.2, 6000, saturated=True) == 0
    assert capacity.observe(4, 6400, saturated=True) == 0
    assert capacity.observe(5, 6500, saturated=True) == 1300
    assert capacity.observe(10, 8500, saturated=True) == 1300
    for second in (11, 12, 13, 14):
        capacity.observe(second, 20_000, saturated=second != 13)
    assert capacity.service_per_s == 1300, "no stretch of five seconds was full all the time"


def test_what_is_known_outlives_the_window() -> None:
    capacity = MeasuredCapacity(window_s=10)
    capacity.observe(0, 0, saturated=True)
    capacity.observe(2, 100, saturated=True)
    assert capacity.observe(1000, 100, saturated=False) == 50
    capacity.observe(1002, 110, saturated=True)
    assert capacity.observe(1004, 120, saturated=True) == 5  # slower now, and nothing better in the window


def test_a_hung_engine_does_not_make_the_capacity_unknown() -> None:
    capacity = MeasuredCapacity(window_s=10)
    capacity.observe(0, 0, saturated=True)
    capacity.observe(2, 100, saturated=True)
    assert [capacity.observe(second, 100, saturated=True) for second in range(3, 100)] == [50] * 97
