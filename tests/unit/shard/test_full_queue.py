"""A full queue refuses calls only if they have to wait: arrivals of one entry that get slots at once do not fill it."""

from __future__ import annotations

from dispatcher.model.commands import Offer, Outcome, Refused, Waiting
from tests.support.world.lone_shard import LoneShard, report


def arrive_together(shard: LoneShard, count: int, waiting_max: int) -> list[Outcome]:
    """Decide so many calls of one tenant for one entry."""
    until = shard.now + 60
    calls = [shard.new_call("a", 1.0, floor=0, deadline_at=until, waiting_max=waiting_max) for _ in range(count)]
    return list(shard.decide(*calls).outcomes)


def kinds(outcomes: list[Outcome]) -> list[type[Outcome]]:
    return [type(outcome) for outcome in outcomes]


def test_a_burst_that_fits_into_the_free_slots_is_accepted_whole() -> None:
    assert kinds(arrive_together(LoneShard(None, report("w", 16)), 16, waiting_max=4)) == [Offer] * 16


def test_a_tenant_that_may_not_wait_gets_all_free_slots() -> None:
    assert kinds(arrive_together(LoneShard(None, report("w", 3)), 5, waiting_max=0)) == [Offer] * 3 + [Refused] * 2


def test_beyond_the_free_slots_the_queue_keeps_its_limit() -> None:
    outcomes = kinds(arrive_together(LoneShard(None, report("w", 8)), 20, waiting_max=2))
    assert outcomes.count(Offer) == 8
    assert outcomes.count(Waiting) == 2
    assert outcomes.count(Refused) == 10
