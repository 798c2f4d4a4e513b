"""The time model in virtual time, and that it needs no torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dispatcher.policies.service import WEIGHTED_TOKENS
from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import EngineEvent, Evicted, PromptTooLong, Started, Token
from gpu_worker.engines.modelled.engine import INSTANT, ModelledEngine
from gpu_worker.engines.registry import ENGINES, EngineUnavailable, make_engine
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.fairness.tiered import make_queue
from gpu_worker.policies.preemption import Strategy
from tests.engines.engine_kinds import events_of, finished, gather_text, request


class VirtualTime:
    def __init__(self) -> None:
        self.now_s = 0.0

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def engine_in(time: VirtualTime, batch: int = 4) -> ModelledEngine:
    profile = replace(
        INSTANT,
        batch_max=batch,
        prefill_base_s=1.0,
        prefill_per_token_s=0.01,
        decode_base_s=0.1,
        decode_per_request_s=0.02,
        decode_per_kv_token_s=0.001,
    )
    return ModelledEngine(make_policy("fcfs"), profile=profile, sleep=time.sleep)


async def test_a_request_takes_what_the_model_says() -> None:
    time = VirtualTime()
    engine = engine_in(time)
    await engine.start()
    await events_of(engine, request("r", prompt="x" * 40, max_tokens=3))  # 10 tokens
    await engine.stop()
    first_s = 1.0 + 0.01 * 10 + 0.1  # the prefill gives the first token
    decode_s = sum(0.1 + 0.02 + 0.001 * kv_tokens for kv_tokens in (11, 12))
    assert time.now_s == pytest.approx(first_s + decode_s)


async def test_a_batch_shares_its_steps() -> None:
    time = VirtualTime()
    engine = engine_in(time)
    await engine.start()
    await gather_text(engine, [request(f"r{n}", prompt="x" * 40, max_tokens=2) for n in range(3)])
    await engine.stop()
    first_s = 1.0 + 0.01 * 30 + 0.1
    decode_s = 0.1 + 0.02 * 3 + 0.001 * 33
    assert time.now_s == pytest.approx(first_s + decode_s)


async def test_more_than_the_batch_take_turns() -> None:
    time = VirtualTime()
    engine = engine_in(time, batch=1)
    await engine.start()
    await gather_text(engine, [request(f"r{n}", prompt="x" * 40, max_tokens=1) for n in range(3)])
    await engine.stop()
    assert time.now_s == pytest.approx(3 * (1.0 + 0.1 + 0.1))


async def test_its_tokens_are_words() -> None:
    engine = engine_in(VirtualTime())
    await engine.start()
    events = await events_of(engine, request("r", max_tokens=5))
    await engine.stop()
    text = "".join(event.text for event in events if isinstance(event, Token))
    assert len(text.split()) == 5


def test_it_loads_no_torch() -> None:
    script = (
        "import sys, pathlib; from gpu_worker.engines.registry import make_engine;"
        "make_engine('modelled', policy='vtc', model=None, batch=4, home=pathlib.Path('.'));"
        "sys.exit(bool({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


needs_vllm_away = pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
unavailable = [pytest.param("vllm", r"docs/quick-start\.md says how", marks=needs_vllm_away), ("abacus", "modelled")]


@pytest.mark.parametrize(("kind", "says"), unavailable)
def test_an_engine_that_cannot_be_had_says_what_can(kind: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match=says):
        make_engine(kind, policy="vtc", model=None, batch=4, home=tmp_path)
    assert "vllm" in ENGINES


def test_an_unknown_policy_is_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lottery"):
        make_engine("modelled", policy="lottery", model=None, batch=4, home=tmp_path)


# ── Tiers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

P, S, B = Tier.PREMIUM, Tier.STANDARD, Tier.BACKGROUND


def tiered(time: VirtualTime | None = None, *, batch: int = 2, kv: int = 1000, **settings: object) -> ModelledEngine:
    """Steps of a tenth of a second; tests play them one by one."""
    time = time or VirtualTime()
    queue = make_queue("tiered:vtc", settings)
    profile = replace(INSTANT, pool_tokens=kv, batch_max=batch, prefill_per_token_s=0.001, decode_base_s=0.1)
    return ModelledEngine(queue, profile=profile, sleep=time.sleep, monotonic_s=lambda: time.now_s)


async def entered(engine: ModelledEngine, name: str, tier: Tier, **fields: Any) -> AsyncGenerator[EngineEvent, None]:
    stream = engine.generate(request(name, fields.pop("tenant", name), tier=tier, **{"max_tokens": 20, **fields}))
    assert isinstance(await anext(stream), Started)
    return stream


async def steps(engine: ModelledEngine, count: int) -> None:
    for _ in range(count):
        await engine.step()


async def test_premium_takes_the_place_of_background_which_goes_on_later_as_if_undisturbed() -> None:
    time = VirtualTime()
    alone = tiered(time)
    undisturbed = await entered(alone, "b", B)
    await steps(alone, 20)
    expected = [event async for event in undisturbed]

    engine = tiered(batch=1)
    background = await entered(engine, "b", B)
    await steps(engine, 5)
    premium = await entered(engine, "p", P, max_tokens=3)
    await engine.step()
    snapshot = engine.stats()
    assert (snapshot.running, snapshot.gauges.tiers[P].running, snapshot.gauges.tiers[B].waiting) == (1, 1, 1)
    assert snapshot.counts.preemptions == {(Strategy.RECOMPUTE, B): 1}
    await steps(engine, 30)
    assert [event async for event in background] == expected
    assert (await finished(premium)).output_tokens == 3
    snapshot = engine.stats()
    assert (snapshot.counts.resumed, snapshot.counts.recomputed_tokens) == (1, 5 + 5)
    assert snapshot.counts.costs[Strategy.RECOMPUTE].measured == 1
    assert snapshot.tenants["b"].output_tokens == 20
    assert snapshot.tenants["b"].service == WEIGHTED_TOKENS(5, 20), "what is computed again is no new service"


async def test_no_request_is_evicted_for_an_equal_or_for_background() -> None:
    engine = tiered(batch=1)
    await entered(engine, "s", S)
    await steps(engine, 2)
    for name, tier in (("s2", S), ("b", B)):
        await entered(engine, name, tier)
    await steps(engine, 5)
    snapshot = engine.stats()
    assert (snapshot.gauges.tiers[S].running, snapshot.waiting, sum(snapshot.counts.preemptions.values())) == (1, 2, 0)


async def test_room_in_the_cache_is_made_too_and_no_more_than_is_needed() -> None:
    engine = tiered(batch=8, kv=100)
    for name in ("b1", "b2", "b3"):
        await entered(engine, name, B, max_tokens=25)
    await steps(engine, 3)
    await entered(engine, "p", P, max_tokens=25)
    await steps(engine, 1)
    snapshot = engine.stats()
    assert (snapshot.gauges.tiers[P].running, snapshot.gauges.tiers[B].running) == (1, 2)


async def test_a_late_request_that_may_be_dropped_ends_as_preempted() -> None:
    engine = tiered(batch=1, may_drop=frozenset({B}))
    background = await entered(engine, "b", B, max_tokens=50, timeout_s=3.0)
    await steps(engine, 3)
    await entered(engine, "p", P)
    await steps(engine, 1)
    assert [(await anext(background)).output_tokens for _ in range(3)] == [1, 2, 3]  # type: ignore[union-attr]
    with pytest.raises(Evicted, match="evicted") as caught:
        await anext(background)
    assert caught.value.code == "preempted"
    assert engine.stats().counts.preemptions == {(Strategy.DROP, B): 1}
    assert engine.stats().tenants["b"].output_tokens == 3


async def test_evicted_as_often_as_may_be_it_is_ended_or_goes_first() -> None:
    for at_limit in ("end", "promote"):
        engine = tiered(batch=1, preemptions_max=2, at_limit=at_limit)
        background = await entered(engine, "b", B, max_tokens=50)
        for number in range(3):
            await steps(engine, 3)
            await entered(engine, f"p{number}", P, max_tokens=2)
            await steps(engine, 3)
        snapshot = engine.stats().counts
        assert (snapshot.preemptions[Strategy.RECOMPUTE, B], snapshot.exhausted) == (2, int(at_limit == "end"))
        if at_limit == "end":
            with pytest.raises(Evicted) as caught:
                [event async for event in background]
            assert caught.value.code == "preempted_too_often"
        else:
            assert engine.stats().gauges.tiers[B].running == 1


async def test_a_request_past_its_deadline_ends_and_is_counted_once() -> None:
    engine = tiered(batch=1)
    running = await entered(engine, "r", S, timeout_s=0.55)
    waiting = await entered(engine, "w", S, timeout_s=0.35)
    await steps(engine, 10)
    assert ((await finished(running)).reason, (await finished(waiting)).output_tokens) == ("aborted", 0)
    assert engine.stats().counts.expired == 2
    assert (engine.stats().running, engine.stats().waiting) == (0, 0)


async def test_the_reserve_is_premiums() -> None:
    engine = tiered(batch=8, kv=100, premium_reserve=0.3, preemption=False)
    with pytest.raises(PromptTooLong, match="70"):
        await entered(engine, "greedy", S, max_tokens=70)
    for name in ("s1", "s2", "s3"):
        await entered(engine, name, S, max_tokens=25)
    await steps(engine, 1)
    assert engine.stats().gauges.tiers[S].running == 2
    await entered(engine, "p", P, max_tokens=25)
    await steps(engine, 1)
    now = engine.stats().gauges
    assert (now.tiers[P].running, now.reserve_blocks, now.reserve_used) == (1, 30, 30)
