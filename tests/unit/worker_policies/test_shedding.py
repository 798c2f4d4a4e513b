"""Which tiers are refused while others are at risk: in which order, for how long, and with which Retry-After."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import sin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.shedding import Shedder, ShedSettings
from gpu_worker.policies.slo import SloMonitor, SloSettings

P, S, B = Tier.PREMIUM, Tier.STANDARD, Tier.BACKGROUND
LATE = {P: 0.5, S: 1.0}


class World:
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
    world = World()
    world.run(60)
    assert world.shed() == []


def test_premium_at_risk_sheds_background_and_then_standard() -> None:
    world = World()
    world.run(5, P)
    assert world.shed() == [B]
    world.run(4, P)
    assert world.shed() == [B]
    world.run(10, P)
    assert set(world.shed()) == {B, S}
    world.run(300, P)
    assert set(world.shed()) == {B, S}, "premium and the system tier are never shed"


def test_standard_at_risk_sheds_background_alone() -> None:
    world = World()
    world.run(120, S)
    assert world.shed() == [B]


def test_standard_is_not_shed_for_samples_before_background_was_shed() -> None:
    world = World()
    world.run(3, P)
    assert world.shed() == [B]
    world.run(60)
    assert 2 not in world.levels


def test_each_level_falls_after_a_calm_interval() -> None:
    world = World()
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
    world = World()
    world.run(60, P, S)
    world.run(120, S)
    assert world.shedder.level == 1


@pytest.mark.parametrize("period_s", [2, 5, 10, 20, 40])
def test_attainment_that_swings_faster_than_the_calm_interval_changes_no_level(period_s: int) -> None:
    world = World()
    world.run(600, S, share=lambda now_s: 1.0 if sin(6.283 * now_s / period_s) > 0 else 0.0)
    assert world.levels == [0, 1]


def test_a_permanent_overload_is_tried_less_and_less_often() -> None:
    world = World(ShedSettings(calm_s=10.0, calm_max_s=160.0))
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
    world = World(ShedSettings(calm_s=10.0))
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
    world = World(ShedSettings(calm_s=5.0))
    for seconds, late in stretches:
        world.run(seconds, *late)
        assert not world.shedder.sheds(P)
        assert not world.shedder.sheds(Tier.SYSTEM)
        assert world.shedder.sheds(B) or not world.shedder.sheds(S), "background is shed first"
    falls = sum(later < sooner for sooner, later in pairwise(world.levels))
    assert falls <= 2 + world.now_s / 5.0
    assert all(abs(later - sooner) == 1 for sooner, later in pairwise(world.levels))


def test_shedding_can_be_switched_off() -> None:
    world = World(ShedSettings(enabled=False))
    world.run(60, P, S)
    assert world.shed() == []


def shedding() -> Shedder:
    world = World()
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
    world = World()
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
def test_an_impossible_setting_is_refused(fields: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ShedSettings(**fields)  # type: ignore[arg-type]
