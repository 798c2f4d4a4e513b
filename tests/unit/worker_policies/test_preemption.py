"""Victims and their costs, worked by hand; the errors of the source (docs/preemption-design.md) do not occur."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.interface import Precedence, QueueRequest
from gpu_worker.policies.preemption import (
    UNCALIBRATED,
    Calibration,
    Eviction,
    Resident,
    Shortage,
    Strategy,
    cheapest,
    choose_victims,
    costs_s,
    sort_by_protection,
)

PREMIUM, STANDARD, BACKGROUND = Tier.PREMIUM, Tier.STANDARD, Tier.BACKGROUND


def running(name: str, blocks: int, generated: int = 0, preemptions: int = 0, tier: Tier = BACKGROUND) -> Resident:
    return Resident(name, tier, blocks, 4 * blocks, generated, preemptions)


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


def test_no_request_is_evicted_without_a_shortage() -> None:
    assert victims(0, 0, running("a", 4)) == []
    assert Shortage(0, 0).is_covered
    assert not Shortage(1, 0).is_covered
    assert not Shortage(0, 1).is_covered


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


SWAP, RECOMPUTE, DROP = Strategy.SWAP, Strategy.RECOMPUTE, Strategy.DROP

LINK = Calibration(
    kv_bytes_per_token=1_000.0,
    copy_out_bytes_per_s=1e6,
    copy_in_bytes_per_s=2e6,
    copy_base_s=0.01,
    prefill_base_s=0.02,
    prefill_per_token_s=1e-3,
    prefill_per_token2_s=1e-5,
    decode_s=0.1,
    retry_s=3.0,
)


def request(prompt: int = 60, most: int | None = 100, deadline_s: float = inf) -> QueueRequest:
    return QueueRequest("r", "a", prompt, output_tokens_max=most, tier=Tier.BACKGROUND, deadline_s=deadline_s)


def resident(kv_tokens: int = 100, generated: int = 40) -> Resident:
    return Resident("r", Tier.BACKGROUND, 7, kv_tokens, generated)


def test_a_swap_costs_the_copies_out_and_in() -> None:
    """100 kB at 1 MB/s and at 2 MB/s, plus 10 ms each. The source divides a rate in bytes by 8, which gives 1.2 s."""
    assert costs_s(LINK, resident(), request(), 0.0)[SWAP] == pytest.approx(0.1 + 0.05 + 2 * 0.01)
    assert LINK.swap_out_s(100) == pytest.approx(0.11)
    assert LINK.swap_in_s(100) == pytest.approx(0.06)


def test_a_recompute_costs_a_prefill_of_the_prompt_and_the_output_so_far() -> None:
    assert costs_s(LINK, resident(), request(), 0.0)[RECOMPUTE] == pytest.approx(0.02 + 0.1 + 0.1)


def test_a_drop_costs_the_whole_request_again_and_the_retry() -> None:
    """The prompt's prefill, 20 + 60 + 36 ms; 40 tokens at 100 ms; 3 s."""
    assert costs_s(LINK, resident(), request(), 0.0)[DROP] == pytest.approx(0.116 + 4.0 + 3.0)


def test_a_drop_costs_nothing_if_the_deadline_would_be_missed_anyway() -> None:
    """60 tokens left take 6 s; resuming takes 0.17 s by swap, the cheaper way."""
    for deadline_s, useless in ((16.18, False), (16.16, True)):
        drop_s = costs_s(LINK, resident(), request(deadline_s=deadline_s), 10.0)[DROP]
        assert (drop_s == 0.0) is useless


@pytest.mark.parametrize(("most", "generated"), [(None, 40), (100, 500)])
def test_a_request_of_unknown_remaining_length_is_expected_to_end_when_it_resumes(
    most: int | None, generated: int
) -> None:
    for deadline_s, useless in ((10.18, False), (10.16, True)):
        drop_s = costs_s(LINK, resident(generated=generated), request(most=most, deadline_s=deadline_s), 10.0)[DROP]
        assert (drop_s == 0.0) is useless


def test_only_a_tier_that_allows_drops_drops_a_useless_request() -> None:
    costs = {SWAP: 0.2, RECOMPUTE: 0.3, DROP: 0.0}
    allowing = frozenset({Tier.BACKGROUND})
    assert cheapest(costs, tier=Tier.BACKGROUND, may_drop=allowing, may_swap=True) is DROP
    assert cheapest(costs, tier=Tier.STANDARD, may_drop=allowing, may_swap=True) is SWAP


def test_a_swap_is_chosen_if_it_is_possible_and_cheaper() -> None:
    costs = {SWAP: 0.2, RECOMPUTE: 0.3, DROP: 9.0}
    for may_swap, strategy in ((True, SWAP), (False, RECOMPUTE)):
        assert cheapest(costs, tier=Tier.BACKGROUND, may_drop=frozenset(), may_swap=may_swap) is strategy
    assert cheapest({**costs, SWAP: 0.3}, tier=Tier.BACKGROUND, may_drop=frozenset(), may_swap=True) is RECOMPUTE


def test_an_engine_that_cannot_swap_recomputes() -> None:
    costs = costs_s(UNCALIBRATED, resident(), request(), 0.0)
    assert costs[SWAP] == inf
    assert costs[RECOMPUTE] == pytest.approx(0.01), "10,000 tokens per second"
    assert cheapest(costs, tier=Tier.BACKGROUND, may_drop=frozenset(), may_swap=True) is RECOMPUTE
    for rate in ("copy_out_bytes_per_s", "copy_in_bytes_per_s"):
        assert costs_s(replace(LINK, **{rate: 0.0}), resident(), request(), 0.0)[SWAP] == inf


def test_costs_cross_where_the_square_of_the_length_outgrows_the_copy() -> None:
    """1.5 n + 20 ms against 1 n + 0.01 n^2 + 20 ms are equal at n = 50."""
    assert LINK.crossover_tokens(4_096) == 51
    assert LINK.crossover_tokens(50) is None
    assert LINK.crossover_tokens(0) is None
    assert LINK.crossover_tokens(40_960) == 60, "to the resolution of tokens_max / 4096"


def test_beyond_the_crossing_a_swap_stays_cheaper() -> None:
    """A prefill has a base cost too, so a swap is also cheaper for very few tokens, and more expensive in between."""
    link = replace(LINK, prefill_base_s=0.0205, prefill_per_token2_s=1e-6)
    assert link.swap_out_s(0) + link.swap_in_s(0) < link.prefill_s(0)
    crossover = link.crossover_tokens(4_096)
    assert crossover == 499
    assert all(link.swap_out_s(n) + link.swap_in_s(n) < link.prefill_s(n) for n in range(crossover, 4_097))
    assert link.swap_out_s(100) + link.swap_in_s(100) > link.prefill_s(100)


def test_costs_do_not_cross_if_a_prefill_is_linear() -> None:
    """In the source's model the same strategy is the cheapest at every length."""
    assert replace(LINK, prefill_per_token2_s=0.0).crossover_tokens(100_000) is None


def test_the_predicted_cost_of_an_eviction_is_that_of_its_strategy() -> None:
    costs = {SWAP: 0.2, RECOMPUTE: 0.3}
    assert Eviction(resident(), RECOMPUTE, costs).predicted_s == 0.3
    assert Eviction(resident(), DROP, exhausted=True).predicted_s == 0.0
