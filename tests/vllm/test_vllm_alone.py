"""Our schedulers in vLLM without a model: seeded storms, and rare cases. Steps, tokens, counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import pytest
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import SchedulingPolicy

from dispatcher.policies.tiers import Tier
from tests.support.vllm.scheduler_harness import SchedulerHarness
from tests.support.vllm.scheduler_setup import BaseConfig, FakeTime, Setup, base_config, fake_time

STORMS, PARTS = 1200, 6
TIERS = ("premium", "standard", "background")
Make = Callable[..., SchedulerHarness]
"""Makes a harness of these fields of `Setup`."""


@pytest.fixture(scope="module")
def base() -> Iterator[BaseConfig]:
    with base_config() as found:
        yield found


@pytest.fixture
def time() -> Iterator[FakeTime]:
    with fake_time() as found:
        yield found


@pytest.fixture
def make(base: BaseConfig, time: FakeTime) -> Make:
    return lambda **setup: SchedulerHarness(base, Setup(**setup), time)


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


def storm(harness: SchedulerHarness, chance: Random) -> None:
    """Send arrivals, aborts and cache resets between steps, and aborts during a step."""
    names = (f"r{number}" for number in range(100))
    left = chance.randint(4, 20)
    tiers = [*TIERS, *TIERS, "system"] if chance.random() < 0.7 else [*chance.choices(TIERS, k=2)]
    weights = {f"t{number}": chance.choice([0.5, 1.0, 2.0]) for number in range(3)}
    burst, rising = chance.choice([0.2, 0.5, 0.9]), chance.random() < 0.6
    while left:
        while left and chance.random() < burst:
            left -= 1
            _add_request(harness, chance, next(names), ["background"] if rising and left > 5 else tiers, weights)
        if chance.random() < 0.12:
            _abort_one(harness, chance)
        if chance.random() < 0.02:
            assert harness.scheduler.reset_prefix_cache(reset_running_requests=True)
            harness.seen["reset"] += 1
        paused = chance.random() < 0.04
        harness.scheduler.set_pause_state(chance.choice([*PauseState]) if paused else PauseState.UNPAUSED)
        harness.time.now_s += chance.choice([0.0, 0.01, 0.3, 3.0])
        harness.step(between=partial(_abort_sometimes, harness, chance))
        _compile_grammars(harness, chance)
    harness.scheduler.set_pause_state(PauseState.UNPAUSED)
    while harness.scheduler.has_requests() or harness.in_flight:
        harness.time.now_s += chance.choice([0.0, 0.1])
        _compile_grammars(harness, chance)
        harness.step()
        assert harness.steps < 1500, f"{sorted(harness.scheduler.requests)} hang"


def _add_request(
    harness: SchedulerHarness, chance: Random, name: str, tiers: list[str], weights: dict[str, float]
) -> None:
    if chance.random() < 0.03:
        wrong: dict[str, Any] = chance.choice([{"tier": "first"}, {"weight": -1}, {"stage": "last"}, {"timeout_s": []}])
        harness.add(name, prompt(8), 3, **wrong)
        return
    tenant = chance.choice(sorted(weights))
    length, most = chance.randint(1, 36), chance.choice([1, 2, 5, 12, 27, 27])
    fields: dict[str, Any] = {"tenant": tenant, "weight": weights[tenant], "tier": chance.choice(tiers)}
    if chance.random() < 0.15:
        fields["timeout_s"] = chance.choice([0.0, 0.5, 5.0])
    harness.add(
        name,
        prompt(length, family=chance.randint(0, 2)),
        most,
        stop_after=chance.randint(1, most) if chance.random() < 0.4 else None,
        grammar=chance.random() < 0.05,
        resumable=chance.random() < 0.01,
        **fields,
    )


def _abort_one(harness: SchedulerHarness, chance: Random) -> None:
    """Abort a request that waits, runs, was preempted, or was evicted in this step."""
    evicted = [name for _, one in harness.evicted if (name := one.resident.request_id) in harness.scheduler.requests]
    preempted = [request.request_id for request in harness.scheduler.waiting if request.num_preemptions]
    waiting = [request.request_id for request in harness.scheduler.waiting]
    places = [place for place in (harness.running, evicted, preempted, waiting) if place]
    if places:
        harness.abort(chance.choice(chance.choice(places)))


def _abort_sometimes(harness: SchedulerHarness, chance: Random) -> None:
    if chance.random() < 0.1:
        _abort_one(harness, chance)


def _compile_grammars(harness: SchedulerHarness, chance: Random) -> None:
    for name, request in harness.scheduler.requests.items():
        found = request.structured_output_request
        if found is not None and found.grammar is None and chance.random() < 0.3:
            harness.compile(name, broken=chance.random() < 0.2)


@pytest.mark.parametrize("part", range(PARTS))
def test_storms(base: BaseConfig, time: FakeTime, part: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(part, STORMS, PARTS):
        chance = Random(seed)
        setup = setup_of(chance)
        harness = SchedulerHarness(base, setup, time)
        try:
            storm(harness, chance)
            harness.check_end()
            assert not harness.useless_evictions, "evicted for a request that was not admitted"
        except BaseException as error:
            error.add_note(f"seed {seed}, {setup}")
            raise
        seen += harness.seen
    for kind in ("native", "stale", "reset", "evicted by swap", "evicted by recompute", "evicted by drop"):
        assert seen[kind] > 0, f"no storm had this: {kind}"
    assert seen["planned"] > 300, "the plan is what vLLM admits (scheduler_harness.py)"
    assert seen["admitted beside the plan"] < 0.1 * seen["planned"], "the plan counts a block too many for a decode"


BOTH = pytest.mark.parametrize("ahead", [False, True])


def preemptions(harness: SchedulerHarness) -> int:
    return int(harness.scheduler.counts.preemptions.total())


@pytest.mark.parametrize("swap_blocks", [None, 20])
@pytest.mark.parametrize("most", [4, 6])
def test_a_native_victim_gets_its_token_in_flight(make: Make, swap_blocks: int | None, most: int) -> None:
    """`most` 4: the token is its last, so it ends while it waits; 6: one in the middle."""
    harness = make(ahead=True, blocks=16, swap_blocks=swap_blocks)
    harness.add("long", prompt(41), 20, tenant="a")
    harness.add("other", prompt(17, 1), most, tenant="b")
    while not harness.seen["native"]:
        harness.step()
    assert harness.seen["stale"] == 1
    assert "other" not in harness.running
    assert harness.sent["other"].tokens == harness.sent["other"].expected[:4]
    assert bool(harness.sent["other"].ends) == (most == 4)
    harness.finish()
    assert harness.policy.received["b"].output_tokens == most


@pytest.mark.parametrize("how", ["abort", "deadline", "its own end"])
def test_a_token_that_arrives_after_the_eviction_is_charged_if_the_request_never_runs_again(
    make: Make, time: FakeTime, how: str
) -> None:
    harness = make(ahead=True, batch=1)
    most = 2 if how == "its own end" else 20
    harness.add("victim", prompt(8), most, tenant="a", tier="background", timeout_s=100.0)
    harness.step(2)
    harness.add("premium", prompt(8, 1), 20, tenant="b", tier="premium")
    harness.step()
    assert harness.running == ["premium"] or not harness.running
    before = len(harness.sent["victim"].tokens)
    assert harness.evicted
    assert before == 2  # the second arrived while it waited
    if how == "abort":
        harness.abort("victim")
    if how == "deadline":
        time.now_s += 200.0
    harness.finish()
    assert harness.policy.received["a"].output_tokens == len(harness.sent["victim"].tokens) == 2


@pytest.mark.parametrize("swap_blocks", [None, 20])
def test_a_victim_aborted_in_the_step_that_evicted_it(make: Make, swap_blocks: int | None) -> None:
    harness = make(ahead=True, batch=1, swap_blocks=swap_blocks)
    harness.add("victim", prompt(8), 20, tenant="a", tier="background")
    harness.step(3)
    harness.add("premium", prompt(8, 1), 3, tenant="b", tier="premium")
    harness.step(between=lambda: harness.abort("victim"))
    assert [eviction.resident.request_id for _, eviction in harness.evicted] == ["victim"]
    harness.finish()


@BOTH
def test_no_request_is_evicted_for_one_without_a_compiled_grammar(make: Make, ahead: bool) -> None:
    harness = make(ahead=ahead, batch=1, tiers={"at_limit": "end", "preemptions_max": 1})
    harness.add("long", prompt(8), 20, tier="background")
    harness.step(2)
    harness.add("premium", prompt(8, 1), 2, grammar=True, tier="premium")
    harness.step(6)
    assert (preemptions(harness), harness.running) == (0, ["long"])
    harness.add("standard", prompt(8, 2), 2, tier="standard")
    harness.step()
    assert (preemptions(harness), "premium" in harness.running) == (
        1,
        False,
    )  # the request behind it does not wait for it
    harness.compile("premium")
    harness.finish()
    assert all(sent.tokens == sent.expected for sent in harness.sent.values())


@BOTH
def test_a_skipped_request_changes_no_state(make: Make, ahead: bool) -> None:
    harness = make(ahead=ahead, batch=2)
    for number in range(3):
        harness.add(f"g{number}", prompt(8, number), 2, grammar=True, tenant="a", weight=2.0)
    harness.add("ready", prompt(8, 3), 6, tenant="b")
    before = tier_states(harness)
    harness.step(3)
    assert harness.running == ["ready"]
    after = tier_states(harness)
    assert {name: after[name] for name in before if name != "ready"} == {
        name: tier_state for name, tier_state in before.items() if name != "ready"
    }
    assert harness.policy.counter("a") == 0.0
    for number in range(3):
        harness.compile(f"g{number}", broken=number == 1)
    harness.finish()
    assert harness.sent["g1"].ends == [("error", None)]


def tier_states(harness: SchedulerHarness) -> dict[str, tuple[Any, ...]]:
    """Return the state of the waiting requests."""
    found = [harness.policy.tier_state(request.request_id) for request in harness.scheduler.waiting]
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


def test_a_tentative_pass_leaves_nothing(make: Make, time: FakeTime) -> None:
    """Counters, waits and shares are as before the pass."""
    harness = make(batch=8, blocks=40, tiers={"share_slack": 0.0, "aging_per_s": 0.0})
    harness.add("long", prompt(8), 20, tenant="x", tier="background")
    harness.step(2)
    for number, tier in enumerate(("premium", "standard", "premium", "standard", "background")):
        harness.add(f"r{number}", prompt(8, number), 3, tenant=f"t{number % 2}", tier=tier, weight=1.0 + number % 2)
    policy, scheduler = harness.policy, harness.scheduler

    def state() -> Any:
        received = {name: (got.input_tokens, got.output_tokens, got.service) for name, got in policy.received.items()}
        shares = [(policy.shares.given(tier), policy.shares.behind(tier), policy.shares.is_owed(tier)) for tier in Tier]
        heads = [head.request_id for head in policy.heads()]
        return (
            policy.counters(),
            received,
            shares,
            policy.shares.total,
            heads,
            tier_states(harness),
            policy.may_preempt(),
        )

    time.now_s += 7.0
    scheduler.admission.begin_pass(time.now_s)
    expected = state()
    scheduler._make_room_for_waiting()
    assert scheduler.waiting.peek_request().request_id == "r0"
    scheduler.waiting.end_pass()
    now = state()
    assert {time.now_s - wait[0] + wait[1] for wait in tier_states(harness).values()} == {7.0}
    assert without_since(now) == without_since(expected)
    harness.finish()


def test_a_plan_is_undone_as_soon_as_vllm_preempts_by_itself(make: Make) -> None:
    """vLLM admits none in such a step."""
    harness = make(batch=8, blocks=40)
    harness.add("long", prompt(8), 20, tenant="x", tier="background")
    harness.step(2)
    harness.add("p", prompt(8, 1), 3, tenant="p", tier="premium")
    harness.scheduler._make_room_for_waiting()
    assert harness.policy.is_running("p")
    harness.scheduler._preempt_request(harness.scheduler.running.pop(), 0.0)
    assert not harness.policy.is_running("p")
    assert harness.policy.received["p"].service == 0


@pytest.mark.parametrize("preemption", [True, False])
def test_premium_passes_an_aged_prompt_that_lacks_blocks(make: Make, time: FakeTime, preemption: bool) -> None:
    harness = make(blocks=24, batch=4, tiers={"aging_per_s": 1.0, "preemption": preemption})
    harness.add("runs", prompt(40), 20, tier="standard")
    harness.step(2)
    giant = harness.add("giant", prompt(56, family=1), 2, tier="standard")
    harness.step()
    time.now_s += 10.0
    gold = harness.add("gold", prompt(8, family=2), 2, tier="premium")
    assert harness.policy.rank_of("giant") < 0
    harness.step()
    assert len(gold.tokens) == 1
    harness.finish()
    assert not preemptions(harness)
    assert len(giant.tokens) == 2


def without_since(found: Any) -> object:
    """Leave out how a wait is split into the current stay in the queue and earlier ones."""
    *others, tier_state, last = found
    return others, {name: values[2:] for name, values in tier_state.items()}, last


@BOTH
def test_the_last_allowed_eviction_is_not_useless(make: Make, ahead: bool) -> None:
    """It promotes its victim, which then ranks before the request that it was evicted for."""
    harness = make(ahead=ahead, batch=1, tiers={"preemptions_max": 1})
    harness.add("victim", prompt(8), 12, tenant="a", tier="background")
    harness.step(3)
    harness.add("premium", prompt(8, 1), 4, tenant="b", tier="premium")
    harness.step()
    assert harness.running == ["premium"]
    harness.finish()
    assert preemptions(harness) == 1


def test_no_request_is_evicted_when_the_step_has_no_tokens_left(make: Make) -> None:
    """A prompt of the same tier takes all tokens of the step."""
    harness = make(batch=2, step_tokens=8, tiers={"aging_per_s": 0.0})
    harness.add("short", prompt(4), 20, tier="background")
    harness.step(2)
    harness.add("s", prompt(36, 1), 2, tier="premium")
    harness.step()
    assert sorted(harness.running) == ["s", "short"]
    harness.add("premium", prompt(8, 2), 2, tier="premium")
    while 36 - harness.scheduler.requests["s"].num_computed_tokens >= 8:
        harness.step()
        assert preemptions(harness) == 0
    harness.finish()
    assert harness.useless_evictions == 0


@BOTH
def test_a_victim_does_not_free_shared_blocks(make: Make, ahead: bool) -> None:
    """The premium request shares the victim's first blocks: once the victim has left, it needs them itself."""
    harness = make(ahead=ahead, blocks=16, batch=3, caching=True, tiers={"aging_per_s": 0.0})
    harness.add("kept", prompt(20, 1), 12, tier="premium", tenant="a")
    harness.add("victim", prompt(28), 7, tier="background", tenant="b")
    harness.step(3)
    harness.add("premium", [*prompt(24), *prompt(24, 2)], 2, tier="premium", tenant="c")  # 12 blocks, 6 of them hits
    harness.finish()
    assert (preemptions(harness), harness.useless_evictions) == (0, 0)


@BOTH
@pytest.mark.parametrize("state", [PauseState.PAUSED_NEW, PauseState.PAUSED_ALL])
def test_no_request_is_evicted_while_the_scheduler_is_paused(make: Make, ahead: bool, state: PauseState) -> None:
    harness = make(ahead=ahead, batch=1)
    harness.add("long", prompt(8), 20, tier="background")
    harness.step(2)
    harness.add("premium", prompt(8, 1), 2, tier="premium")
    harness.scheduler.set_pause_state(state)
    for _ in range(3):
        harness.schedule()
        harness.update()
    assert (preemptions(harness), harness.running) == (0, ["long"])
    harness.scheduler.set_pause_state(PauseState.UNPAUSED)
    harness.finish()
    assert preemptions(harness) == 1


@BOTH
def test_a_request_that_outgrows_what_the_reserve_leaves_is_refused(make: Make, ahead: bool) -> None:
    """It would be admitted while it is small, evicted when it is large, and never admitted again."""
    harness = make(ahead=ahead, blocks=16, batch=1, tiers={"premium_reserve": 0.4})
    harness.add("large", prompt(30), 7, tier="standard")
    harness.add("as large as may be", prompt(30), 6, tier="standard")
    harness.add("premium", prompt(30), 30, tier="premium")
    harness.finish()
    assert [sent.ends[0][1] for sent in harness.sent.values()] == ["headgate:too_large", None, None]


@BOTH
def test_invalid_fields_end_their_request_and_nothing_else(make: Make, ahead: bool) -> None:
    """An exception in `add_request` would end vLLM's core."""
    harness = make(ahead=ahead)
    harness.add("good", prompt(8), 5)
    harness.add("tier", prompt(8), 5, tier="first")
    harness.add("weight", prompt(8), 5, weight=-1)
    harness.add("stage", prompt(8), 5, stage=[])
    harness.add("output_max", prompt(8), 5, output_max="abc")
    harness.add("output_max is no number", prompt(8), 5, output_max=float("nan"))
    harness.add("output_expected", prompt(8), 5, output_expected={})
    harness.add("timeout_s", prompt(8), 5, timeout_s=[])
    harness.add("streams its input", prompt(8), 5, resumable=True)
    harness.finish()
    stop_reasons = {name: sent.ends[0][1] for name, sent in harness.sent.items()}
    assert stop_reasons.pop("good") is None
    assert set(stop_reasons.values()) == {"headgate:invalid"}
    assert harness.scheduler.counts.wrong_fields == len(stop_reasons) - 1  # but for the one that streams its input


@BOTH
def test_fields_beyond_their_bounds_end_no_request(make: Make, ahead: bool) -> None:
    harness = make(ahead=ahead)
    harness.add("limit", prompt(8), 5, output_max=2**63 - 1)
    harness.add("weight", prompt(8), 5, weight=1e-300)
    harness.add("deadline", prompt(8), 5, timeout_s=1e300)
    harness.finish()
    assert {sent.ends[0][1] for sent in harness.sent.values()} == {None}


@BOTH
def test_vllms_own_attribute_of_the_scheduler_stays(make: Make, ahead: bool) -> None:
    scheduler = make(ahead=ahead).scheduler
    assert scheduler.policy is SchedulingPolicy.FCFS


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_cache_reset_does_not_charge_discarded_tokens(make: Make, steps: int) -> None:
    """Tokens in flight are computed again. No other request took a place, so it is nobody's preemption."""
    harness = make(ahead=True, caching=True)
    harness.add("a", prompt(8), 10, tenant="a")
    harness.add("b", prompt(8, 1), 10, tenant="b")
    harness.step(steps)
    assert harness.in_flight
    assert harness.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert not harness.running
    assert [harness.policy.tier_state(name).preemptions for name in ("a", "b")] == [0, 0]
    for _ in range(4):
        harness.step()
        assert harness.policy.received["a"].output_tokens == len(harness.sent["a"].tokens)
    harness.finish()


def test_a_prompt_of_a_lower_tier_sits_out_a_step_and_keeps_its_blocks(make: Make) -> None:
    harness = make(blocks=40, batch=4, step_tokens=8)
    harness.add("b", prompt(60), 2, tier="background")
    harness.step(2)
    before = harness.scheduler.requests["b"].num_computed_tokens
    gold = harness.add("p", prompt(8, family=1), 2, tier="premium")
    harness.step()
    assert len(gold.tokens) == 1
    assert harness.scheduler.requests["b"].num_computed_tokens == before
    assert "b" in harness.running
    harness.finish()
    assert not preemptions(harness)


def test_a_cache_reset_is_no_preemption(make: Make) -> None:
    harness = make(batch=1)
    harness.add("b", prompt(4), 30, tier="background")
    harness.step(2)
    for _ in range(3):
        harness.scheduler.reset_prefix_cache(reset_running_requests=True)
        harness.step(2)
    assert harness.policy.record("b").preemptions == 0
    gold = harness.add("p", prompt(4, family=1), 2, tier="premium")
    harness.step()
    assert len(gold.tokens) == 1
    harness.finish()


def test_an_abort_in_prefill_is_charged_for_what_was_computed(make: Make) -> None:
    harness = make(blocks=40, step_tokens=8)
    harness.add("a", prompt(60), 5, tenant="a")
    harness.step(2)
    harness.abort("a")
    assert harness.policy.received["a"].service == harness.policy.received["a"].input_tokens == 16


def test_a_prompt_of_a_lower_tier_rests_beside_decodes_while_nothing_waits(make: Make) -> None:
    harness = make(blocks=60, batch=2, step_tokens=8)
    harness.add("p", prompt(4), 40, tier="premium")
    harness.add("b", prompt(60, 1), 2, tier="background")
    harness.step(2)
    before = harness.scheduler.requests["b"].num_computed_tokens
    harness.step(4)
    assert harness.scheduler.requests["b"].num_computed_tokens == before
    harness.add("waits", prompt(60, 2), 2, tier="background")
    harness.step(2)
    assert harness.scheduler.requests["b"].num_computed_tokens > before
    harness.finish()
