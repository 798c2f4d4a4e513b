"""The tokens of a step: who takes from whose part, what an eviction frees, and the bound of a prompt that is paused."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import ceil

import pytest

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.interface import Precedence, QueueRequest
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.fairness.tiered import TieredQueue
from gpu_worker.policies.step_tokens import RESTS_MAX, Prefill, StepTokens, Turns
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
    assert tokens.take(15, PREMIUM, over_premium) == 15
    assert parts(tokens) == {"s0": 20, "b1": 30, "b2": 35}
    assert tokens.take(70, PREMIUM, over_premium) == 70
    assert parts(tokens) == {"s0": 15, "b1": 0, "b2": 0}


def test_of_equal_ones_the_last_is_paused() -> None:
    tokens = made(60, b0=30, b1=30)
    tokens.take(30, PREMIUM, lambda name: (2.0, 0.0))
    assert parts(tokens) == {"b0": 30, "b1": 0}


def test_nobody_takes_from_a_prompt_that_it_may_not_evict() -> None:
    tokens = made(50, p0=60)
    assert tokens.available(over_premium) == 0
    assert tokens.take(10, PREMIUM, over_premium) == 0
    assert parts(tokens) == {"p0": 50}


def test_what_a_newcomer_lacks_is_its_own_once_it_is_free() -> None:
    tokens = StepTokens(10, [], fixed={"b0": 1, "b1": 1})
    assert tokens.available(over_premium) == 8
    assert tokens.take(20, PREMIUM, over_premium) == 8
    assert tokens.available(over_premium, ["b0"]) == 0
    tokens.release(["b0"])
    assert not tokens.has_any()


def test_an_evicted_prompt_leaves_its_part_to_the_newcomer_and_the_rest_to_the_others() -> None:
    tokens = made(50, b0=40, b1=40)
    assert tokens.available(over_premium, ["b1"]) == 50
    tokens.release(["b1"])
    assert tokens.take(5, PREMIUM, over_premium) == 5
    tokens.settle()
    assert parts(tokens) == {"b0": 40}


def queue(settings: TierSettings | None = None, waiting: Iterable[Tier] = ()) -> TieredQueue:
    made = TieredQueue(lambda: make_policy("vtc"), settings or TierSettings())
    for tier in waiting:
        made.enqueue(QueueRequest(f"waits in {tier}", "t", 10, tier=tier))
    return made


@pytest.mark.parametrize("tier", [BACKGROUND, STANDARD])
@pytest.mark.parametrize("settings", [TierSettings(), TierSettings(shares={})])
def test_a_paused_prompt_ends_within_its_bound_whatever_comes(tier: Tier, settings: TierSettings) -> None:
    chunk, left = 64, 2000
    turns, steps = Turns(queue(settings)), 0
    share = settings.share(tier)
    most = ceil(1 / share) if share else RESTS_MAX + 1
    while left > 0:
        prefills = [Prefill("p0", PREMIUM, 10_000), Prefill(f"{tier[0]}0", tier, left)]
        tokens = StepTokens(chunk, prefills, turns.next())
        while tokens.available(over_premium):
            tokens.take(chunk, PREMIUM, over_premium)
        turns.settle(tokens, [PREMIUM])
        left -= parts(tokens)[f"{tier[0]}0"]
        steps += 1
        assert steps <= ceil(2000 / chunk) * most
    assert steps > ceil(2000 / chunk) * (most - 1)


def test_misses_and_rests_together_keep_the_bound() -> None:
    turns, steps = Turns(queue()), [0]
    most = ceil(1 / TierSettings().share(BACKGROUND)) + RESTS_MAX
    for step in range(2_000):
        tokens = made(64, turns.next(), b0=64)
        if step % 3 == 0 and tokens.available(over_premium):
            tokens.take(64, PREMIUM, over_premium)
        turns.settle(tokens, [PREMIUM])
        if parts(tokens)["b0"]:
            steps.append(step)
    assert max(later - earlier for earlier, later in pairwise(steps)) <= most


def settled(tokens: StepTokens, *decoding: Tier, policy: TieredQueue | None = None) -> dict[str, int]:
    Turns(policy or queue()).settle(tokens, decoding)
    return parts(tokens)


def test_a_prompt_rests_beside_more_urgent_decodes() -> None:
    assert settled(made(100, s0=30, b0=30), PREMIUM) == {"s0": 0, "b0": 0}
    assert settled(made(100, s0=30), STANDARD) == {"s0": 30}
    assert settled(made(100, b0=30), BACKGROUND) == {"b0": 30}


def test_no_prompt_rests_for_decodes_while_a_less_urgent_request_waits() -> None:
    for waiting, part in ((PREMIUM, 0), (STANDARD, 30), (BACKGROUND, 30)):
        assert settled(made(100, b0=30), PREMIUM, policy=queue(waiting=[waiting])) == {"b0": part}
    assert settled(made(100, b0=30), STANDARD, policy=queue(waiting=[STANDARD])) == {"b0": 0}


def test_a_prompt_rests_in_the_step_of_a_more_urgent_prompt_whatever_waits() -> None:
    policy = queue(waiting=[BACKGROUND])
    assert settled(made(100, p0=20, s0=30), policy=policy) == {"p0": 20, "s0": 0}
    tokens = made(100, b0=30)
    tokens.take(10, STANDARD, lambda name: None)
    assert settled(tokens, policy=policy) == {"b0": 0}


def test_in_its_turn_a_prompt_does_not_rest() -> None:
    assert settled(made(100, BACKGROUND, p0=20, b0=30), PREMIUM) == {"p0": 20, "b0": 30}


def test_a_prompt_rests_for_decodes_at_most_so_often_in_a_row() -> None:
    turns = Turns(queue())
    for _ in range(2):
        for step in range(RESTS_MAX + 1):
            tokens = made(100, turns.next(), b0=30)
            turns.settle(tokens, [PREMIUM])
            assert parts(tokens) == {"b0": 30 if step == RESTS_MAX else 0}


def test_without_preemption_there_is_neither_a_rest_nor_a_turn() -> None:
    for policy in (queue(TierSettings(preemption=False)), make_policy("vtc")):
        turns = Turns(policy)
        for _ in range(100):
            assert turns.next() is None
            tokens = made(100, p0=20, b0=30)
            turns.settle(tokens, [PREMIUM])
            assert parts(tokens) == {"p0": 20, "b0": 30}
            turns.settle(made(0, b0=30), [PREMIUM])
