"""The choice of victims, worked by hand; the errors of its source (docs/preemption-design.md) do not occur."""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.interface import Precedence
from gpu_worker.policies.preemption.victims import Resident, Shortage, choose_victims, sort_by_protection

PREMIUM, STANDARD, BACKGROUND = Tier.PREMIUM, Tier.STANDARD, Tier.BACKGROUND


def running(
    name: str, blocks: int, generated: int = 0, preemptions: int = 0, tier: Tier = BACKGROUND, *, entered: bool = False
) -> Resident:
    return Resident(name, tier, blocks, 4 * blocks, generated, preemptions, entered)


def for_premium(*residents: Resident) -> Callable[[str], Precedence | None]:
    """Whoever is of a lower tier may go."""
    ranks = {resident.request_id: resident.tier.rank for resident in residents}
    return lambda request_id: (float(ranks[request_id]), 0.0) if ranks[request_id] > 0 else None


def victims(blocks: int, slots: int, *residents: Resident) -> list[str] | None:
    chosen = choose_victims(Shortage(blocks, slots), residents, for_premium(*residents))
    return None if chosen is None else [victim.request_id for victim in chosen]


def test_the_lowest_tier_goes_first_however_far_it_came() -> None:
    standard, background = running("s", 4, tier=STANDARD), running("b", 4, generated=500, preemptions=2)
    assert victims(4, 0, standard, background) == ["b"]


def test_then_the_least_progress_then_the_fewest_preemptions_then_the_name() -> None:
    far, near = running("a", 4, generated=9), running("b", 4, generated=2, preemptions=2)
    assert victims(4, 0, far, near) == ["b"]
    assert victims(4, 0, running("a", 4, preemptions=1), running("b", 4)) == ["b"]
    assert victims(4, 0, running("b", 4), running("a", 4)) == ["a"]


def test_within_a_tier_the_tenant_that_leads_most_goes_first() -> None:
    leads = {"a": (0.0, 10.0), "b": (0.0, 30.0), "c": (1.0, 0.0)}
    residents = [running("a", 4), running("b", 4, generated=90), running("c", 4, generated=99)]
    chosen = choose_victims(Shortage(8, 0), residents, leads.get)
    assert chosen is not None
    assert [victim.request_id for victim in chosen] == ["c", "b"]


def test_several_are_evicted_until_there_is_room_and_no_more() -> None:
    assert victims(7, 1, *(running(name, 4, generated) for generated, name in enumerate("abcd"))) == ["a", "b"]


def test_who_turns_out_not_to_be_needed_is_spared() -> None:
    """The source's greedy choice would evict a, b and c where c alone makes room."""
    small, smaller, large = running("a", 1), running("b", 2, generated=1), running("c", 8, generated=2)
    assert victims(8, 1, small, smaller, large) == ["c"]
    assert victims(9, 1, small, smaller, large) == ["a", "c"], "of those that would do, who came furthest is spared"


def test_a_slot_is_made_free_where_blocks_are_not_short() -> None:
    assert victims(-5, 1, running("a", 0), running("b", 3, generated=1)) == ["a"]
    assert victims(2, 2, running("a", 5), running("b", 0, generated=1)) == ["a", "b"]


def test_nobody_is_evicted_where_it_would_not_make_room() -> None:
    assert victims(9, 0, running("a", 4), running("b", 4)) is None
    assert victims(1, 3, running("a", 4), running("b", 4)) is None
    assert victims(1, 0) is None


def test_nobody_is_evicted_where_nothing_is_missing() -> None:
    assert victims(0, 0, running("a", 4)) == []
    assert Shortage(0, 0).is_covered
    assert not Shortage(1, 0).is_covered
    assert not Shortage(0, 1).is_covered


def test_of_several_victims_each_is_one_that_may_be_evicted_for_this_request() -> None:
    """The source's choice of several forgets whom it is for: short of eight blocks it would take premium's too."""
    premium = running("p", 8, tier=PREMIUM)
    assert victims(8, 0, premium, running("b", 4)) is None
    assert victims(8, 0, premium, running("b", 4), running("s", 4, tier=STANDARD)) == ["b", "s"]


def test_who_entered_in_this_pass_stays_in_it() -> None:
    assert victims(4, 0, running("a", 4, entered=True), running("b", 4, generated=7)) == ["b"]


def test_what_a_victim_frees_is_counted_before_it_is_gone() -> None:
    """The source clears the list of blocks and then returns its length: 0, and capacity leaks away."""
    found = choose_victims(Shortage(4, 0), [running("a", 4)], lambda request_id: (1.0, 0.0))
    assert found is not None
    assert sum(victim.blocks for victim in found) == 4


def test_the_engine_keeps_the_protected_then_the_most_urgent_then_who_came_furthest() -> None:
    ranks = {"a": 0.0, "b": 2.0, "c": 1.0, "d": 1.0, "e": 1.0, "f": 1.0}
    residents = [
        running("f", 1),
        running("e", 1),
        running("d", 1, preemptions=1),
        running("c", 1, generated=5),
        running("b", 1),
        running("a", 1),
    ]
    order = sort_by_protection(residents, lambda name: ranks[name], lambda name: name == "b")
    assert [resident.request_id for resident in order] == ["b", "a", "c", "e", "f", "d"]
