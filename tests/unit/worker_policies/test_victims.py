"""The choice of victims, worked by hand; the errors of its source (docs/preemption-design.md) do not occur."""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.interface import Precedence
from gpu_worker.policies.preemption import Resident, Shortage, choose_victims, sort_by_protection

PREMIUM, STANDARD, BACKGROUND = Tier.PREMIUM, Tier.STANDARD, Tier.BACKGROUND


def running(
    name: str, blocks: int, generated: int = 0, preemptions: int = 0, tier: Tier = BACKGROUND, *, entered: bool = False
) -> Resident:
    return Resident(name, tier, blocks, 4 * blocks, generated, preemptions, entered)


def for_premium(*residents: Resident) -> Callable[[str], Precedence | None]:
    """Every request of a lower tier may be evicted."""
    ranks = {resident.request_id: resident.tier.rank for resident in residents}
    return lambda request_id: (float(ranks[request_id]), 0.0) if ranks[request_id] > 0 else None


def victims(blocks: int, slots: int, *residents: Resident) -> list[str] | None:
    chosen = choose_victims(Shortage(blocks, slots), residents, for_premium(*residents))
    return None if chosen is None else [victim.request_id for victim in chosen]


def test_the_lowest_tier_is_evicted_first_whatever_its_progress() -> None:
    standard, background = running("s", 4, tier=STANDARD), running("b", 4, generated=500, preemptions=2)
    assert victims(4, 0, standard, background) == ["b"]


def test_then_the_least_progress_then_the_fewest_preemptions_then_the_name() -> None:
    far, near = running("a", 4, generated=9), running("b", 4, generated=2, preemptions=2)
    assert victims(4, 0, far, near) == ["b"]
    assert victims(4, 0, running("a", 4, preemptions=1), running("b", 4)) == ["b"]
    assert victims(4, 0, running("b", 4), running("a", 4)) == ["a"]


def test_within_a_tier_the_tenant_with_the_largest_lead_is_first() -> None:
    leads = {"a": (0.0, 10.0), "b": (0.0, 30.0), "c": (1.0, 0.0)}
    residents = [running("a", 4), running("b", 4, generated=90), running("c", 4, generated=99)]
    chosen = choose_victims(Shortage(8, 0), residents, leads.get)
    assert chosen is not None
    assert [victim.request_id for victim in chosen] == ["c", "b"]


def test_no_more_victims_are_chosen_than_needed() -> None:
    assert victims(7, 1, *(running(name, 4, generated) for generated, name in enumerate("abcd"))) == ["a", "b"]


def test_a_victim_that_later_ones_make_unnecessary_is_spared() -> None:
    """The source's greedy choice would evict a, b and c although c alone frees enough."""
    small, smaller, large = running("a", 1), running("b", 2, generated=1), running("c", 8, generated=2)
    assert victims(8, 1, small, smaller, large) == ["c"]
    assert victims(9, 1, small, smaller, large) == ["a", "c"], "b is spared, because it has more progress than a"


def test_a_slot_is_freed_even_if_no_block_is_missing() -> None:
    assert victims(-5, 1, running("a", 0), running("b", 3, generated=1)) == ["a"]
    assert victims(2, 2, running("a", 5), running("b", 0, generated=1)) == ["a", "b"]


def test_no_request_is_evicted_if_all_victims_free_too_little() -> None:
    assert victims(9, 0, running("a", 4), running("b", 4)) is None
    assert victims(1, 3, running("a", 4), running("b", 4)) is None
    assert victims(1, 0) is None


def test_no_request_is_evicted_without_a_shortage() -> None:
    assert victims(0, 0, running("a", 4)) == []
    assert Shortage(0, 0).is_covered
    assert not Shortage(1, 0).is_covered
    assert not Shortage(0, 1).is_covered


def test_each_of_several_victims_may_be_evicted_for_this_request() -> None:
    """The source ignores the waiting request's rank when it chooses several: it would evict the premium request too."""
    premium = running("p", 8, tier=PREMIUM)
    assert victims(8, 0, premium, running("b", 4)) is None
    assert victims(8, 0, premium, running("b", 4), running("s", 4, tier=STANDARD)) == ["b", "s"]


def test_a_request_admitted_in_this_pass_is_no_victim() -> None:
    assert victims(4, 0, running("a", 4, entered=True), running("b", 4, generated=7)) == ["b"]


def test_freed_blocks_are_counted_before_the_eviction() -> None:
    """The source clears the list of blocks and then returns its length, 0, so it loses track of free blocks."""
    found = choose_victims(Shortage(4, 0), [running("a", 4)], lambda request_id: (1.0, 0.0))
    assert found is not None
    assert sum(victim.blocks for victim in found) == 4


def test_protected_requests_are_kept_first_then_the_most_urgent_then_the_most_progress() -> None:
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
