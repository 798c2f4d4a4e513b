"""The tokens of a step: who takes from whose part, what an eviction frees, and the bound of a prompt that is paused."""

from __future__ import annotations

from math import ceil

import pytest

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.interface import Precedence
from gpu_worker.policies.step_tokens import Prefill, StepTokens, Turns
from gpu_worker.policies.tiers import TierSettings

STANDARD, BACKGROUND, PREMIUM = Tier.STANDARD, Tier.BACKGROUND, Tier.PREMIUM


def over_premium(request_id: str) -> Precedence | None:
    """Rank 1 for standard, 2 for background; a second letter is the lead."""
    rank = {"s": 1.0, "b": 2.0}.get(request_id[0])
    return None if rank is None else (rank, float(request_id[1]))


def parts(tokens: StepTokens) -> dict[str, int]:
    return {prefill.request_id: prefill.part for prefill in tokens.prefills}


def made(free: int, turn: Tier | None = None, **wanted: int) -> StepTokens:
    tier = {"p": PREMIUM, "s": STANDARD, "b": BACKGROUND}
    return StepTokens(free, [Prefill(name, tier[name[0]], tokens) for name, tokens in wanted.items()], turn)


def test_prompts_take_their_parts_in_order() -> None:
    assert parts(made(100, p0=30, s0=50, b0=90)) == {"p0": 30, "s0": 50, "b0": 20}


def test_a_newcomer_takes_what_is_free_then_from_the_lowest_rank_then_from_the_greatest_lead() -> None:
    tokens = made(100, s0=20, b1=30, b2=40)
    assert tokens.available(over_premium) == 100
    assert tokens.take(15, over_premium) == 15
    assert parts(tokens) == {"s0": 20, "b1": 30, "b2": 35}
    assert tokens.take(70, over_premium) == 70
    assert parts(tokens) == {"s0": 15, "b1": 0, "b2": 0}


def test_of_equal_ones_the_last_is_paused() -> None:
    tokens = made(60, b0=30, b1=30)
    tokens.take(30, lambda name: (2.0, 0.0))
    assert parts(tokens) == {"b0": 30, "b1": 0}


def test_nobody_takes_from_a_prompt_that_it_may_not_evict() -> None:
    tokens = made(50, p0=60)
    assert tokens.available(over_premium) == 0
    assert tokens.take(10, over_premium) == 0
    assert parts(tokens) == {"p0": 50}


def test_what_a_newcomer_lacks_is_its_own_once_it_is_free() -> None:
    tokens = StepTokens(10, [], fixed={"b0": 1, "b1": 1})
    assert tokens.available(over_premium) == 8
    assert tokens.take(20, over_premium) == 8
    assert tokens.available(over_premium, ["b0"]) == 0
    tokens.release(["b0"])
    assert not tokens.has_any()


def test_an_evicted_prompt_leaves_its_part_to_the_newcomer_and_the_rest_to_the_others() -> None:
    tokens = made(50, b0=40, b1=40)
    assert tokens.available(over_premium, ["b1"]) == 50
    tokens.release(["b1"])
    assert tokens.take(5, over_premium) == 5
    tokens.settle()
    assert parts(tokens) == {"b0": 40}


@pytest.mark.parametrize("tier", [BACKGROUND, STANDARD])
def test_a_paused_prompt_ends_within_its_bound_whatever_comes(tier: Tier) -> None:
    settings, chunk, left = TierSettings(), 64, 2000
    turns, steps = Turns(settings), 0
    while left > 0:
        prefills = [Prefill("p0", PREMIUM, 10_000), Prefill(f"{tier[0]}0", tier, left)]
        tokens = StepTokens(chunk, prefills, turns.next())
        while tokens.available(over_premium):
            tokens.take(chunk, over_premium)
        turns.count(tokens.settle())
        left -= parts(tokens)[f"{tier[0]}0"]
        steps += 1
        assert steps <= ceil(2000 / chunk) * ceil(1 / settings.share(tier))
    assert steps > ceil(2000 / chunk) * (ceil(1 / settings.share(tier)) - 1)


def test_without_a_share_or_without_preemption_there_is_no_turn() -> None:
    for settings in (TierSettings(shares={}), TierSettings(preemption=False)):
        turns = Turns(settings)
        for _ in range(100):
            assert turns.next() is None
            turns.count([Prefill("b0", BACKGROUND, 5)])
