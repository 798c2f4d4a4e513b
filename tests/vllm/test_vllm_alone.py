"""Our schedulers in vLLM without a model: seeded storms, and what is hard to meet by chance. Steps, tokens, counts."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

import pytest

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is absent", allow_module_level=True)

from vllm.v1.core.sched.interface import PauseState

from dispatcher.policies.tiers import Tier
from tests.support.vllm_alone import Alone, Clock, Configured, Setup, clock_of_ours, configured

STORMS, PARTS = 1200, 6
TIERS = ("premium", "standard", "background")


@pytest.fixture(scope="module")
def made() -> Iterator[Configured]:
    with configured() as found:
        yield found


@pytest.fixture
def clock() -> Iterator[Clock]:
    with clock_of_ours() as found:
        yield found


def prompt(tokens: int, family: int = 0) -> list[int]:
    return [family * 1000 + place for place in range(tokens)]


def setup_of(chance: Random) -> Setup:
    tiers: dict[str, Any] = {
        "at_limit": chance.choice(["end", "promote"]),
        "preemptions_max": chance.choice([0, 1, 2, 3]),
        "may_drop": chance.choice([[], [], ["background"], ["standard", "background"]]),
        "premium_reserve": chance.choice([0.0, 0.0, 0.2, 0.4]),
        "share_slack": chance.choice([0.0, 20.0, 4096.0]),
        "aging_per_s": chance.choice([0.0, 0.1, 1.0]),
        "preemption": chance.random() < 0.9,
    }
    if chance.random() < 0.5:
        tiers["shares"] = {}
    if chance.random() < 0.4:
        tiers["lead_max"] = chance.choice([1.0, 20.0, 100.0])
    return Setup(
        ahead=chance.random() < 0.6,
        blocks=chance.choice([16, 16, 18, 24, 40]),
        batch=chance.choice([1, 2, 3, 5, 8]),
        step_tokens=chance.choice([8, 12, 20, 64]),
        caching=chance.random() < 0.5,
        swap_blocks=chance.choice([None, None, 0, 6, 30]),
        v2=chance.random() < 0.3,
        policy=chance.choice(["vtc", *(f"tiered:{inner}" for inner in INNER)]),
        tiers=tiers,
    )


INNER = ("vtc", "fcfs", "wsc", "lcf", "drr:20", "rpm:4", "vtc-cap:60", "vtc-noisy:0.5")


def storm(alone: Alone, chance: Random) -> None:
    """Arrivals, aborts and the clock between steps; aborts while one runs."""
    names = (f"r{number}" for number in range(100))
    left = chance.randint(4, 20)
    tiers = [*TIERS, *TIERS, "system"] if chance.random() < 0.7 else [*chance.choices(TIERS, k=2)]
    weights = {f"t{number}": chance.choice([0.5, 1.0, 2.0]) for number in range(3)}
    burst, rising = chance.choice([0.2, 0.5, 0.9]), chance.random() < 0.6
    while left:
        while left and chance.random() < burst:
            left -= 1
            _arrives(alone, chance, next(names), ["background"] if rising and left > 5 else tiers, weights)
        if chance.random() < 0.12:
            _abort_somebody(alone, chance)
        if chance.random() < 0.02:
            assert alone.scheduler.reset_prefix_cache(reset_running_requests=True)
            alone.seen["reset"] += 1
        paused = chance.random() < 0.04
        alone.scheduler.set_pause_state(chance.choice([*PauseState]) if paused else PauseState.UNPAUSED)
        alone.clock.now_s += chance.choice([0.0, 0.01, 0.3, 3.0])
        alone.step(while_it_runs=partial(_abort_now_and_then, alone, chance))
        _grammars_are_ready(alone, chance)
    alone.scheduler.set_pause_state(PauseState.UNPAUSED)
    while alone.scheduler.has_requests() or alone.under_way:
        alone.clock.now_s += chance.choice([0.0, 0.1])
        _grammars_are_ready(alone, chance)
        alone.step()
        assert alone.steps < 1500, f"{sorted(alone.scheduler.requests)} hang"


def _arrives(alone: Alone, chance: Random, name: str, tiers: list[str], weights: dict[str, float]) -> None:
    if chance.random() < 0.03:
        wrong: dict[str, Any] = chance.choice([{"tier": "first"}, {"weight": -1}, {"stage": "last"}, {"timeout_s": []}])
        alone.ask(name, prompt(8), 3, **wrong)
        return
    tenant = chance.choice(sorted(weights))
    length, most = chance.randint(1, 36), chance.choice([1, 2, 5, 12, 27, 27])
    said: dict[str, object] = {"tenant": tenant, "weight": weights[tenant], "tier": chance.choice(tiers)}
    if chance.random() < 0.15:
        said["timeout_s"] = chance.choice([0.0, 0.5, 5.0])
    alone.ask(
        name,
        prompt(length, family=chance.randint(0, 2)),
        most,
        stop_after=chance.randint(1, most) if chance.random() < 0.4 else None,
        grammar=chance.random() < 0.05,
        resumable=chance.random() < 0.01,
        **said,
    )


def _abort_somebody(alone: Alone, chance: Random) -> None:
    """Of those that wait, run or were evicted in this very step, each as likely."""
    evicted = [name for _, one in alone.evicted if (name := one.resident.request_id) in alone.scheduler.requests]
    preempted = [request.request_id for request in alone.scheduler.waiting if request.num_preemptions]
    waiting = [request.request_id for request in alone.scheduler.waiting]
    places = [place for place in (alone.running, evicted, preempted, waiting) if place]
    if places:
        alone.abort(chance.choice(chance.choice(places)))


def _abort_now_and_then(alone: Alone, chance: Random) -> None:
    if chance.random() < 0.1:
        _abort_somebody(alone, chance)


def _grammars_are_ready(alone: Alone, chance: Random) -> None:
    for name, request in alone.scheduler.requests.items():
        found = request.structured_output_request
        if found is not None and found.grammar is None and chance.random() < 0.3:
            alone.compile(name, broken=chance.random() < 0.2)


@pytest.mark.parametrize("part", range(PARTS))
def test_storms(made: Configured, clock: Clock, part: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(part, STORMS, PARTS):
        chance = Random(seed)
        setup = setup_of(chance)
        alone = Alone(made, setup, clock)
        try:
            storm(alone, chance)
            alone.check_the_end()
            assert not alone.in_vain, "evicted for one who was not let in"
        except BaseException as error:
            error.add_note(f"seed {seed}, {setup}")
            raise
        seen += alone.seen
    for kind in ("native", "stale", "reset", "evicted by swap", "evicted by recompute", "evicted by drop"):
        assert seen[kind] > 0, f"no storm had what it is for: {kind}"


BOTH = pytest.mark.parametrize("ahead", [False, True])


def preemptions(alone: Alone) -> int:
    return int(alone.scheduler.counts.preemptions.total())


@pytest.mark.parametrize("swap_blocks", [None, 20])
@pytest.mark.parametrize("most", [4, 6])
def test_a_native_victim_gets_the_token_that_was_on_its_way(
    made: Configured, clock: Clock, swap_blocks: int | None, most: int
) -> None:
    """Its last one (`most` 4), and it ends as it waits, or one in the middle."""
    alone = Alone(made, Setup(ahead=True, blocks=16, swap_blocks=swap_blocks), clock)
    alone.ask("long", prompt(41), 20, tenant="a")
    alone.ask("other", prompt(17, 1), most, tenant="b")
    while not alone.seen["native"]:
        alone.step()
    assert alone.seen["stale"] == 1
    assert "other" not in alone.running
    assert alone.asked["other"].tokens == alone.asked["other"].expected[:4]
    assert bool(alone.asked["other"].ends) == (most == 4)
    alone.run()
    alone.check_the_end()
    assert alone.policy.received["b"].output_tokens == most


@pytest.mark.parametrize("how", ["abort", "deadline", "its own end"])
def test_the_token_that_came_after_an_eviction_is_charged_where_its_request_never_runs_again(
    made: Configured, clock: Clock, how: str
) -> None:
    alone = Alone(made, Setup(ahead=True, batch=1), clock)
    most = 2 if how == "its own end" else 20
    alone.ask("victim", prompt(8), most, tenant="a", tier="background", timeout_s=100.0)
    alone.step(2)
    alone.ask("premium", prompt(8, 1), 20, tenant="b", tier="premium")
    alone.step()
    assert alone.running == ["premium"] or not alone.running
    before = len(alone.asked["victim"].tokens)
    assert alone.evicted
    assert before == 2  # the second came as it waited
    if how == "abort":
        alone.abort("victim")
    if how == "deadline":
        clock.now_s += 200.0
    alone.run()
    alone.check_the_end()
    assert alone.policy.received["a"].output_tokens == len(alone.asked["victim"].tokens) == 2


@pytest.mark.parametrize("swap_blocks", [None, 20])
def test_a_victim_aborted_in_the_step_that_evicted_it(made: Configured, clock: Clock, swap_blocks: int | None) -> None:
    alone = Alone(made, Setup(ahead=True, batch=1, swap_blocks=swap_blocks), clock)
    alone.ask("victim", prompt(8), 20, tenant="a", tier="background")
    alone.step(3)
    alone.ask("premium", prompt(8, 1), 3, tenant="b", tier="premium")
    alone.step(while_it_runs=lambda: alone.abort("victim"))
    assert [eviction.resident.request_id for _, eviction in alone.evicted] == ["victim"]
    alone.run()
    alone.check_the_end()


@BOTH
def test_nobody_is_evicted_for_one_whose_grammar_is_not_there(made: Configured, clock: Clock, ahead: bool) -> None:
    alone = Alone(made, Setup(ahead=ahead, batch=1, tiers={"at_limit": "end", "preemptions_max": 1}), clock)
    alone.ask("long", prompt(8), 20, tier="background")
    alone.step(2)
    alone.ask("premium", prompt(8, 1), 2, grammar=True, tier="premium")
    alone.step(6)
    assert (preemptions(alone), alone.running) == (0, ["long"])
    alone.ask("standard", prompt(8, 2), 2, tier="standard")
    alone.step()
    assert (preemptions(alone), "premium" in alone.running) == (1, False)  # who stands behind it need not wait for it
    alone.compile("premium")
    alone.run()
    alone.check_the_end()
    assert all(asked.tokens == asked.expected for asked in alone.asked.values())


@BOTH
def test_a_skipped_request_is_as_if_it_had_never_been_looked_at(made: Configured, clock: Clock, ahead: bool) -> None:
    alone = Alone(made, Setup(ahead=ahead, batch=2), clock)
    for number in range(3):
        alone.ask(f"g{number}", prompt(8, number), 2, grammar=True, tenant="a", weight=2.0)
    alone.ask("ready", prompt(8, 3), 6, tenant="b")
    before = tier_states(alone)
    alone.step(3)
    assert alone.running == ["ready"]
    after = tier_states(alone)
    assert {name: after[name] for name in before if name != "ready"} == {
        name: tier_state for name, tier_state in before.items() if name != "ready"
    }
    assert alone.policy.counter("a") == 0.0
    for number in range(3):
        alone.compile(f"g{number}", broken=number == 1)
    alone.run()
    alone.check_the_end()
    assert alone.asked["g1"].ends == [("error", None)]


def tier_states(alone: Alone) -> dict[str, tuple[Any, ...]]:
    """What counts of those that wait."""
    found = [alone.policy.tier_state(request.request_id) for request in alone.scheduler.waiting]
    return {
        one.request.request_id: (
            one.since_s,
            one.waited_s,
            one.record.prompt_charged,
            one.record.output_tokens,
            one.preemptions,
        )
        for one in found
    }


def test_a_tentative_pass_leaves_nothing(made: Configured, clock: Clock) -> None:
    """All of it is put back, as vLLM has no token left for anybody: counters, waits and shares."""
    alone = Alone(made, Setup(batch=8, blocks=40, tiers={"share_slack": 0.0, "aging_per_s": 0.0}), clock)
    alone.ask("long", prompt(8), 20, tenant="x", tier="background")
    alone.step(2)
    for number, tier in enumerate(("premium", "standard", "premium", "standard", "background")):
        alone.ask(f"r{number}", prompt(8, number), 3, tenant=f"t{number % 2}", tier=tier, weight=1.0 + number % 2)
    policy, scheduler = alone.policy, alone.scheduler

    def all_of_it() -> Any:
        received = {name: (got.input_tokens, got.output_tokens, got.service) for name, got in policy.received.items()}
        shares = [(policy.shares.given(tier), policy.shares.behind(tier), policy.shares.is_owed(tier)) for tier in Tier]
        heads = [head.request_id for head in policy.heads()]
        return policy.counters(), received, shares, policy.shares.total, heads, tier_states(alone), policy.may_preempt()

    clock.now_s += 7.0
    scheduler.admission.begin_pass(clock.now_s)
    expected = all_of_it()
    scheduler._make_room()
    assert scheduler.waiting.peek_request().request_id == "r0"
    scheduler.waiting.pass_ends()
    now = all_of_it()
    assert {clock.now_s - wait[0] + wait[1] for wait in tier_states(alone).values()} == {7.0}
    assert without_since(now) == without_since(expected)
    alone.run()
    alone.check_the_end()


def without_since(found: Any) -> object:
    """A wait goes on: from when, and what was before that, may be split another way."""
    *others, tier_state, last = found
    return others, {name: values[2:] for name, values in tier_state.items()}, last


@BOTH
def test_the_last_eviction_that_may_be_is_not_in_vain(made: Configured, clock: Clock, ahead: bool) -> None:
    """It promotes its victim, which then ranks before the one that it was evicted for."""
    alone = Alone(made, Setup(ahead=ahead, batch=1, tiers={"preemptions_max": 1}), clock)
    alone.ask("victim", prompt(8), 12, tenant="a", tier="background")
    alone.step(3)
    alone.ask("premium", prompt(8, 1), 4, tenant="b", tier="premium")
    alone.step()
    assert alone.running == ["premium"]
    alone.run()
    alone.check_the_end()
    assert preemptions(alone) == 1


def test_nobody_is_evicted_where_the_step_has_no_tokens_left(made: Configured, clock: Clock) -> None:
    """The standard one's prompt takes the whole of it, and stays."""
    alone = Alone(made, Setup(batch=2, step_tokens=8, tiers={"aging_per_s": 0.0}), clock)
    alone.ask("short", prompt(4), 20, tier="background")
    alone.step(2)
    alone.ask("s", prompt(36, 1), 2, tier="standard")
    alone.step()
    assert alone.running == ["short", "s"]
    alone.ask("premium", prompt(8, 2), 2, tier="premium")
    while 36 - alone.scheduler.requests["s"].num_computed_tokens >= 8:
        alone.step()
        assert preemptions(alone) == 0
    alone.run()
    alone.check_the_end()
    assert alone.in_vain == 0


@BOTH
def test_a_victim_whose_blocks_the_next_one_shares_makes_less_room(made: Configured, clock: Clock, ahead: bool) -> None:
    """The premium request finds the victim's first blocks: once these are nobody's it needs them itself."""
    alone = Alone(made, Setup(ahead=ahead, blocks=16, batch=3, caching=True, tiers={"aging_per_s": 0.0}), clock)
    alone.ask("kept", prompt(20, 1), 12, tier="premium", tenant="a")
    alone.ask("victim", prompt(28), 7, tier="background", tenant="b")
    alone.step(3)
    alone.ask("premium", [*prompt(24), *prompt(24, 2)], 2, tier="premium", tenant="c")  # 12 blocks, 6 of them found
    alone.run()
    alone.check_the_end()
    assert (preemptions(alone), alone.in_vain) == (0, 0)


@BOTH
@pytest.mark.parametrize("state", [PauseState.PAUSED_NEW, PauseState.PAUSED_ALL])
def test_nobody_is_evicted_while_nobody_may_enter(
    made: Configured, clock: Clock, ahead: bool, state: PauseState
) -> None:
    alone = Alone(made, Setup(ahead=ahead, batch=1), clock)
    alone.ask("long", prompt(8), 20, tier="background")
    alone.step(2)
    alone.ask("premium", prompt(8, 1), 2, tier="premium")
    alone.scheduler.set_pause_state(state)
    for _ in range(3):
        alone.schedule()
        alone.update()
    assert (preemptions(alone), alone.running) == (0, ["long"])
    alone.scheduler.set_pause_state(PauseState.UNPAUSED)
    alone.run()
    alone.check_the_end()
    assert preemptions(alone) == 1


@BOTH
def test_a_request_that_outgrows_what_the_reserve_leaves_is_refused(
    made: Configured, clock: Clock, ahead: bool
) -> None:
    """Let in while it is small, and evicted once it is large, it would never be let in again."""
    alone = Alone(made, Setup(ahead=ahead, blocks=16, batch=1, tiers={"premium_reserve": 0.4}), clock)
    alone.ask("large", prompt(30), 7, tier="standard")
    alone.ask("as large as may be", prompt(30), 6, tier="standard")
    alone.ask("premium", prompt(30), 30, tier="premium")
    alone.run()
    alone.check_the_end()
    assert [asked.ends[0][1] for asked in alone.asked.values()] == ["headgate:too_large", None, None]


@BOTH
def test_what_a_client_says_wrongly_ends_its_request_and_nothing_else(
    made: Configured, clock: Clock, ahead: bool
) -> None:
    """vLLM's core ends with whatever `add_request` raises."""
    alone = Alone(made, Setup(ahead=ahead), clock)
    alone.ask("good", prompt(8), 5)
    alone.ask("tier", prompt(8), 5, tier="first")
    alone.ask("weight", prompt(8), 5, weight=-1)
    alone.ask("stage", prompt(8), 5, stage=[])
    alone.ask("streams its input", prompt(8), 5, resumable=True)
    alone.run()
    alone.check_the_end()
    told = {name: asked.ends[0][1] for name, asked in alone.asked.items()}
    assert told.pop("good") is None
    assert set(told.values()) == {"headgate:invalid"}


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_reset_of_the_cache_charges_nobody_for_what_was_dropped(made: Configured, clock: Clock, steps: int) -> None:
    """What was in flight is computed again; those that ran were evicted, not put back."""
    alone = Alone(made, Setup(ahead=True, caching=True), clock)
    alone.ask("a", prompt(8), 10, tenant="a")
    alone.ask("b", prompt(8, 1), 10, tenant="b")
    alone.step(steps)
    assert alone.under_way
    assert alone.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert [alone.policy.tier_state(name).preemptions for name in ("a", "b")] == [1, 1]
    for _ in range(4):
        alone.step()
        assert alone.policy.received["a"].output_tokens == len(alone.asked["a"].tokens)
    alone.run()
    alone.check_the_end()
