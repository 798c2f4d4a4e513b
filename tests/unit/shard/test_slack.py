"""SLO classes at dispatch: due times decide where shares leave a choice, and deferred calls use what others leave."""

from __future__ import annotations

import pytest

from dispatcher.model.commands import Tick
from dispatcher.policies.orders.slack_index import Slack
from dispatcher.shard.settings import ShardSettings, TierFloors
from tests.support.world.lone_shard import T0, LoneShard, report

SLACK = Slack(window=10.0, urgent_s=60.0)


def shard_with(slack: Slack | None = SLACK, **settings: object) -> LoneShard:
    """Return a shard with one slot, which a call of tenant `busy` holds."""
    made = LoneShard(ShardSettings(slack=slack, **settings))  # type: ignore[arg-type]
    made.call("busy")
    return made


def order_of(shard: LoneShard, *, tokens: int = 1) -> list[str]:
    """End one call after the other, and return the tenants in the order of their dispatches."""
    while shard.shard.state.calls:
        (running,) = (call for call in shard.shard.state.calls.values() if call.worker)
        shard.end(running.id, tokens)
    return [fact.id.split("-")[0] for fact in shard.dispatched[1:]]


def waiting(shard: LoneShard, tenant: str, due_s: float = 0.0, **fields: object) -> None:
    """Queue a call of a process of the tenant's name, due in `due_s` seconds; 0: without a class."""
    due_at = T0 + due_s if due_s else 0.0
    shard.accept(tenant, process=tenant, due_at=due_at, **fields)  # type: ignore[arg-type]


def test_within_the_window_the_least_slack_goes_first() -> None:
    shard = shard_with()
    waiting(shard, "none")
    waiting(shard, "late", 60.0)
    waiting(shard, "soon", 20.0)
    assert order_of(shard) == ["soon", "late", "none"]


def test_without_the_setting_due_times_change_nothing() -> None:
    shard = shard_with(None)
    waiting(shard, "late", 60.0)
    waiting(shard, "soon", 20.0)
    waiting(shard, "batch", 10.0, deferred=True)
    assert order_of(shard) == ["late", "soon", "batch"]


@pytest.mark.parametrize("slack", [None, Slack(window=0.0), SLACK])
def test_without_due_times_the_order_is_that_of_shares(slack: Slack | None) -> None:
    shard = shard_with(slack)
    for tenant in ("a", "b", "a", "b", "c"):
        waiting(shard, tenant, cost=7.0)
    assert order_of(shard, tokens=7) == ["a", "b", "c", "a", "b"]


def test_a_flood_of_urgent_calls_leads_by_the_window_and_one_call_at_most() -> None:
    shard = shard_with()
    for _ in range(30):
        waiting(shard, "flood", 1.0)
        waiting(shard, "patient", 60.0)
    served = order_of(shard)
    leads = [served[:end].count("flood") - served[:end].count("patient") for end in range(len(served) + 1)]
    assert max(leads) <= SLACK.window + 1
    assert min(leads[:40]) >= 0
    assert leads[-1] == 0


def test_in_profile_the_least_slack_goes_first_whatever_the_vft() -> None:
    shard = shard_with(Slack(window=0.0))
    share = {"rate_per_s": 1.0, "burst": 100.0}
    for _ in range(3):
        waiting(shard, "soon", 20.0, **share)
        waiting(shard, "late", 60.0, **share)
    waiting(shard, "surplus", 1.0)
    assert order_of(shard) == ["soon"] * 3 + ["late"] * 3 + ["surplus"]


def test_own_calls_go_by_due_time_then_by_arrival() -> None:
    shard = shard_with()
    calls = {due_s: shard.call("a", due_at=T0 + due_s) for due_s in (60.0, 3600.0, 20.0)}
    again = shard.call("a", due_at=T0 + 20.0)
    order_of(shard)
    assert [fact.id for fact in shard.dispatched[1:]] == [calls[20.0], again, calls[60.0], calls[3600.0]]


def test_deferred_calls_wait_for_all_others() -> None:
    shard = shard_with()
    waiting(shard, "batch", 3600.0, deferred=True, rate_per_s=5.0, burst=100.0)
    waiting(shard, "chat")
    waiting(shard, "chat")
    assert order_of(shard) == ["chat", "chat", "batch"]


def test_deferred_calls_use_no_guarantee_until_they_are_urgent() -> None:
    shard = shard_with()
    share = {"rate_per_s": 1.0, "burst": 100.0, "deferred": True}
    waiting(shard, "night", 3600.0, **share)
    waiting(shard, "urgent", 30.0, **share)
    waiting(shard, "chat")
    assert order_of(shard) == ["urgent", "chat", "night"]
    charged = {fact.id.split("-")[0]: fact.in_profile for fact in shard.dispatched}
    assert charged == {"p": False, "urgent": True, "chat": False, "night": False}


def test_a_deferred_call_becomes_urgent_while_it_waits() -> None:
    shard = shard_with()
    waiting(shard, "night", 100.0, deferred=True, rate_per_s=1.0, burst=100.0)
    waiting(shard, "chat")
    shard.now += 41.0
    assert order_of(shard) == ["night", "chat"]


def test_a_batch_that_waits_does_not_keep_its_tenant_behind_the_others() -> None:
    """Otherwise a tenant that always has a batch in its queue would pass tenants that began to send later."""
    shard = shard_with()
    waiting(shard, "batcher", 3600.0, deferred=True)
    for _ in range(20):
        waiting(shard, "chat", cost=5.0)
    for _ in range(10):
        (running,) = (call for call in shard.shard.state.calls.values() if call.worker)
        shard.end(running.id, 5)
    virtual_time = shard.shard.state.virtual_time
    assert virtual_time > 30
    waiting(shard, "batcher", 20.0)
    assert shard.shard.state.tenants["batcher"].clocks[1] == virtual_time


def test_a_deferred_call_of_the_first_tier_waits_for_the_last_tier() -> None:
    shard = shard_with(tiers=TierFloors({"premium": 0.5}))
    waiting(shard, "batch", 3600.0, deferred=True, tier="premium")
    for _ in range(20):
        waiting(shard, "slow", tier="background")
    assert order_of(shard) == ["slow"] * 20 + ["batch"]
    assert shard.shard.state.behind.get("premium", 0.0) == 0.0


@pytest.mark.parametrize(("window", "urgent_s"), [(-1.0, 0.0), (0.0, -1.0), (float("inf"), 0.0), (float("nan"), 0.0)])
def test_impossible_settings_are_refused(window: float, urgent_s: float) -> None:
    with pytest.raises(ValueError, match="zero or positive"):
        Slack(window, urgent_s)


@pytest.mark.parametrize("slack", [None, SLACK])
def test_an_undone_decision_puts_nobody_in_profile_too_early(slack: Slack | None) -> None:
    shard = LoneShard(ShardSettings(slack=slack), report(slots=1, capacity_per_s=0.0))
    running = shard.call("guaranteed", cost=100.0, rate_per_s=1.0, burst=1.0)  # the bucket is empty for 100 s
    shard.call("guaranteed", cost=100.0, rate_per_s=1.0, burst=1.0)
    other = shard.call("other", cost=1.0)
    shard.shard.decide([Tick(), report(slots=2, capacity_per_s=0.0)], shard.now + 1000.0)
    shard.shard.rollback()
    assert shard.end(running, tokens=100) == [other]
