"""A full queue refuses calls only if they have to wait: arrivals of one entry that get slots at once do not fill it."""

from __future__ import annotations

from dispatcher.model.call import CallTerms, TenantConfig
from dispatcher.model.commands import Accept, Offer, Outcome, Refused, Waiting, call_id
from tests.support.gate.lone_shard import MODEL, LoneShard, report


def arrive_together(shard: LoneShard, count: int, waiting_max: int) -> list[Outcome]:
    """Decide so many calls of one tenant for one entry."""
    return shard.shard.decide(
        [
            Accept(
                call_id("p", number),
                0,
                "p",
                CallTerms("a", MODEL, 1.0, shard.now + 60, False, "", ""),
                TenantConfig(1, 1.0, 0.0, 0.0, "standard", waiting_max),
            )
            for number in range(1, count + 1)
        ],
        shard.now,
    )[0]


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
