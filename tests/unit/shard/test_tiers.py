"""Tiers at the gate: premium before standard before background, guarantees before surplus, and each tier's floor."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.shard.settings import ShardSettings, TierFloors
from tests.support.world.lone_shard import LoneShard, report

ORDER = ("background", "standard", "premium")


def gate(shares: dict[str, float] | None = None, slack: float = 10.0) -> LoneShard:
    """Make a shard with one slot, taken by a tenant of its own."""
    made = LoneShard(ShardSettings(tiers=TierFloors(shares or {}, slack)))
    made.call("blocker")
    return made


def test_the_most_urgent_tier_goes_first() -> None:
    shard = gate()
    sent = {shard.call(tier, tier=tier): tier for _ in range(2) for tier in ORDER}
    served = [sent[name] for name in shard.drain("p-1")]
    assert served == ["premium"] * 2 + ["standard"] * 2 + ["background"] * 2


def test_without_tiers_the_settings_make_no_difference() -> None:
    shard = LoneShard()
    shard.call("blocker")
    sent = {shard.call(tier, tier=tier): tier for tier in ORDER}
    assert [sent[name] for name in shard.drain("p-1")] == list(ORDER)


def test_a_guarantee_goes_before_the_surplus_of_a_more_urgent_tier() -> None:
    shard = gate()
    surplus = [shard.call("rich", tier="premium") for _ in range(2)]
    owed = [shard.call("owed", tier="background", rate_per_s=1.0, burst=1.0) for _ in range(3)]
    # The bucket of 1 s covers a dispatch at 1 s behind and one at 0 s; the third is surplus, after the premium ones.
    assert shard.drain("p-1") == [*owed[:2], *surplus, owed[2]]


def test_among_tiers_with_a_guarantee_the_most_urgent_goes_first() -> None:
    shard = gate()
    background = shard.call("b", tier="background", rate_per_s=1.0, burst=9.0)
    premium = shard.call("p", tier="premium", rate_per_s=1.0, burst=9.0)
    assert shard.drain("p-1") == [premium, background]


def test_a_floor_is_kept_under_a_flood_of_the_more_urgent_tier() -> None:
    shares = {"background": 0.25, "standard": 0.25}
    shard = gate(shares, slack=4.0)
    sent = {shard.call(tier, tier=tier): tier for _ in range(400) for tier in ORDER}
    served = [sent[name] for name in shard.drain("p-1")][:400]
    assert served.count("background") == pytest.approx(100, abs=8)
    assert served.count("standard") == pytest.approx(100, abs=8)
    assert served.count("premium") == pytest.approx(200, abs=16)


def test_a_floor_is_kept_while_another_tier_is_owed_more_for_a_model_without_slots() -> None:
    tiers = TierFloors({"standard": 0.3, "background": 0.1}, slack=4.0)
    shard = LoneShard(ShardSettings(tiers=tiers), report("full", model="full"), report("w"))
    for _ in range(2):  # one runs for ever, one waits
        shard.call("stuck", tier="standard", model="full")
    running = shard.call("blocker", tier="premium")
    sent = {shard.call(tier, tier=tier): tier for _ in range(400) for tier in ("background", "premium")}
    served = [sent[name] for name in shard.drain(running)][:400]
    assert served.count("background") == pytest.approx(40, abs=8)


def test_a_tier_that_was_away_has_saved_no_claim() -> None:
    """Its floor counts from when it began to wait."""
    shard = gate({"background": 0.5}, slack=4.0)
    flood = {shard.call("flood", tier="premium"): "premium" for _ in range(300)}
    running = "p-1"
    for _ in range(200):
        (running,) = shard.end(running)
    late = {shard.call("late", tier="background"): "background" for _ in range(100)}
    served = [{**flood, **late}[name] for name in shard.drain(running)][:80]
    assert served.count("background") == pytest.approx(40, abs=8)


COSTS = (1.0, 3.0, 8.0)
SLACK = 8.0
FLOORS = {"premium": 0.2, "standard": 0.3, "background": 0.5}
sends = st.lists(st.tuples(st.sampled_from(ORDER), st.sampled_from(COSTS)), min_size=20, max_size=60)


@settings(max_examples=100, deadline=None)
@given(first=sends, later=sends)
def test_a_call_is_dispatched_within_the_stated_bound(
    first: list[tuple[str, float]], later: list[tuple[str, float]]
) -> None:
    """tiers.py: with B service before it in its tier, before (B + 2 slack) / s_t more service in all."""
    shard = gate(FLOORS, SLACK)
    queues: dict[str, deque[str]] = {tier: deque() for tier in ORDER}
    cost: dict[str, float] = {}
    limits: dict[str, float] = {}
    total, arrivals, running = 0.0, deque(later), "p-1"

    def arrive(tier: str, estimate: float) -> None:
        name = shard.call(tier, tier=tier, cost=estimate)
        before = sum(cost[each] for each in queues[tier])
        queues[tier].append(name)
        cost[name] = estimate
        limits[name] = total + (before + 2 * SLACK) / FLOORS[tier]

    for tier, estimate in first:
        arrive(tier, estimate)
    while dispatched := shard.end(running):
        (running,) = dispatched
        tier = next(tier for tier, queue in queues.items() if running in queue)
        assert queues[tier].popleft() == running
        assert total <= limits[running], (tier, total, limits[running])
        total += cost[running]
        if arrivals:
            arrive(*arrivals.popleft())
