"""A decision at a later time that is undone leaves no tenant in profile before its time."""

from __future__ import annotations

import pytest

from dispatcher.model.commands import Tick
from dispatcher.policies.orders.slack_index import Slack
from dispatcher.shard.settings import ShardSettings
from tests.support.world.lone_shard import LoneShard, report


@pytest.mark.parametrize("slack", [None, Slack()])
def test_an_undone_decision_puts_nobody_in_profile_too_early(slack: Slack | None) -> None:
    shard = LoneShard(ShardSettings(slack=slack), report(slots=1, capacity_per_s=0.0))
    running = shard.call("guaranteed", cost=100.0, rate_per_s=1.0, burst=1.0)  # the bucket is empty for 100 s
    shard.call("guaranteed", cost=100.0, rate_per_s=1.0, burst=1.0)
    other = shard.call("other", cost=1.0)
    shard.shard.decide([Tick(), report(slots=2, capacity_per_s=0.0)], shard.now + 1000.0)
    shard.shard.rollback()
    assert shard.end(running, tokens=100) == [other]
