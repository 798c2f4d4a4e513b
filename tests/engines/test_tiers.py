"""Tiers inside the transformers engine: which request is evicted, how, at what cost, and with the same text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pytest

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import Engine, EngineError, Evicted, Finished, Token, WorkOrder, own_order
from gpu_worker.engines.step_costs import StepTimes, fit
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.fairness.tiered import TieredQueue
from gpu_worker.policies.preemption import UNCALIBRATED, Calibration, Strategy
from gpu_worker.policies.tiers import TierSettings
from tests.engines.engine_kinds import EngineHold, needs_torch

pytestmark = needs_torch


COPIES_ARE_FREE = Calibration(1.0, 1e12, 1e12, 0.0, 1.0, 1.0, 0.0, 0.02)

COPIES_ARE_DEAR = Calibration(1.0, 1e-3, 1e-3, 1.0, 0.0, 1e-6, 0.0, 0.02)

OUTPUT = 60

PROMPT = "Background: " + "what is served next, and what after that? " * 6

SWAP_BYTES = 64 << 20


@asynccontextmanager
async def tiered_engine(
    home: Path, settings: TierSettings | None = None, *, kv: int = 512, batch: int = 8, swap: int = SWAP_BYTES
) -> AsyncIterator[Any]:
    from gpu_worker.engines.transformers.engine import TransformersEngine, TransformersShape

    policy = TieredQueue(lambda: make_policy("vtc"), settings)
    shape = TransformersShape(batch=batch, kv_tokens=kv, step_tokens=64, swap_bytes=swap)
    engine = TransformersEngine.load(policy, model=None, home=home, shape=shape)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def greedy(prompt: str) -> dict[str, Any]:
    return {"prompt": prompt, "temperature": 0.0}


def background(number: int, **changes: Any) -> WorkOrder:
    asked = own_order(f"b{number}", "batch", greedy(f"{number} {PROMPT}"), OUTPUT, tier=Tier.BACKGROUND)
    return replace(asked, **changes)


def premium(**changes: Any) -> WorkOrder:
    return replace(own_order("premium", "paying", greedy("Premium: " + PROMPT), 8, tier=Tier.PREMIUM), **changes)


class Listening:
    """Record the events of each request, and the order of first tokens and ends."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.texts: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        self.errors: dict[str, EngineError] = {}
        self.order: list[str] = []

    async def listen(self, asked: WorkOrder) -> None:
        name = asked.execution
        self.texts[name], self.counts[name] = "", 0
        try:
            async for event in self._engine.generate(asked):
                if isinstance(event, Token):
                    if not self.counts[name]:
                        self.order.append(f"{name} begins")
                    self.texts[name] += event.text
                    self.counts[name] = event.output_tokens
                elif isinstance(event, Finished):
                    self.order.append(f"{name} ends")
        except EngineError as error:
            self.errors[name] = error


async def crowd(engine: Engine, *, changes: dict[str, Any] | None = None) -> Listening:
    """Fill the cache with background requests; a premium one arrives once two of them run."""
    listening = Listening(engine)
    with EngineHold(engine, lambda tokens: sum(count > 2 for count in tokens.values()) >= 2) as hold:
        tasks = [asyncio.create_task(listening.listen(background(n, **(changes or {})))) for n in range(3)]
        await hold.held()
        tasks.append(asyncio.create_task(listening.listen(premium())))
        await hold.entered("premium")
    await asyncio.gather(*tasks)
    return listening


class TickingClock:
    """A millisecond later at each reading, whatever the machine does."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.001
        return self.now_s


async def undisturbed(home: Path) -> dict[str, str]:
    async with tiered_engine(home, kv=4096) as engine:
        return (await crowd(engine)).texts


@pytest.mark.parametrize("strategy", [Strategy.RECOMPUTE, Strategy.SWAP])
async def test_output_after_a_preemption_is_that_of_an_undisturbed_run(home: Path, strategy: Strategy) -> None:
    async with tiered_engine(home) as engine:
        engine._admission.calibration = COPIES_ARE_FREE if strategy is Strategy.SWAP else COPIES_ARE_DEAR
        heard = await crowd(engine)
        stats = engine.stats()
    assert stats.counts.preemptions == {(strategy, Tier.BACKGROUND): 1}
    assert heard.texts == await undisturbed(home)
    assert heard.order.index("premium ends") < min(heard.order.index(f"b{number} ends") for number in range(3))
    assert stats.counts.resumed == 1
    assert stats.gauges.swap_bytes_used == 0
    if strategy is Strategy.SWAP:
        assert stats.counts.swapped_out_bytes == stats.counts.swapped_in_bytes > 0
        assert stats.counts.recomputed_tokens == 0
    else:
        assert stats.counts.recomputed_tokens > 60


async def test_a_swap_space_that_is_full_makes_it_a_recompute(home: Path) -> None:
    async with tiered_engine(home, swap=0) as engine:
        engine._admission.calibration = COPIES_ARE_FREE
        heard = await crowd(engine)
        counts = engine.stats().counts
    assert counts.preemptions == {(Strategy.RECOMPUTE, Tier.BACKGROUND): 1}
    assert heard.texts == await undisturbed(home)


async def test_everybody_is_charged_what_was_generated_once(home: Path) -> None:
    async with tiered_engine(home) as engine:
        await crowd(engine)
        tenants = engine.stats().tenants
    assert (tenants["batch"].output_tokens, tenants["paying"].output_tokens) == (3 * OUTPUT, 8)
    assert tenants["batch"].service == tenants["batch"].input_tokens + 2 * 3 * OUTPUT


async def test_no_request_is_evicted_for_an_equal(home: Path) -> None:
    async with tiered_engine(home) as engine:
        heard = Listening(engine)
        alike = [replace(background(number), tier=Tier.PREMIUM, invocation=f"p{number}") for number in range(3)]
        await asyncio.gather(*(heard.listen(asked) for asked in alike))
        assert engine.stats().counts.preemptions == {}


async def test_one_that_is_dropped_hears_of_it_and_pays_for_what_it_got(home: Path) -> None:
    settings = TierSettings(may_drop=frozenset({Tier.BACKGROUND}))
    async with tiered_engine(home, settings) as engine:
        engine._admission.calibration = replace(COPIES_ARE_DEAR, decode_s=1e6)
        heard = await crowd(engine, changes={"timeout_s": 3600.0})
        tenants = engine.stats().tenants
        (dropped,) = heard.errors
    assert isinstance(heard.errors[dropped], Evicted)
    assert heard.errors[dropped].code == "preempted"
    assert 0 < heard.counts[dropped] < OUTPUT
    assert tenants["batch"].output_tokens == sum(heard.counts[f"b{number}"] for number in range(3))


async def test_one_preempted_too_often_is_ended_where_that_is_set(home: Path) -> None:
    async with tiered_engine(home, TierSettings(at_limit="end", preemptions_max=0)) as engine:
        heard = await crowd(engine)
    assert [error.code for error in heard.errors.values()] == ["preempted_too_often"]


async def test_one_that_was_promoted_is_left_alone(home: Path) -> None:
    async with tiered_engine(home, TierSettings(preemptions_max=1)) as engine:
        listening = Listening(engine)
        with EngineHold(engine, lambda tokens: sum(tokens.values()) >= 6) as hold:
            tasks = [asyncio.create_task(listening.listen(background(number))) for number in range(2)]
            await hold.held()
        for number in range(6):
            await listening.listen(premium(invocation=f"premium-{number}", max_tokens=2))
        await asyncio.gather(*tasks)
        assert engine.stats().counts.preemptions.total() <= 2
        assert all(listening.counts[f"b{number}"] == OUTPUT for number in range(2))


async def test_a_deadline_takes_out_what_waits_and_what_runs(home: Path) -> None:
    clock = TickingClock()
    async with tiered_engine(home, batch=1) as engine:
        engine._router.monotonic_s = clock
        listening = Listening(engine)
        with EngineHold(engine, lambda tokens: sum(tokens.values()) > 2 and engine._policy.waiting == 1) as hold:
            late = [background(number, timeout_s=100.0, max_tokens=200) for number in range(2)]
            tasks = [asyncio.create_task(listening.listen(asked)) for asked in late]
            await hold.held()
            clock.now_s += 100.0
        await asyncio.gather(*tasks)
        assert engine.stats().counts.expired == 2
        assert sum(listening.counts.values()) < 400


async def test_the_reserve_is_premiums(home: Path) -> None:
    async with tiered_engine(home, TierSettings(premium_reserve=0.5, preemption=False)) as engine:
        heard = await crowd(engine, changes={"max_tokens": 30})
        begun = [what for what in heard.order if what.endswith("begins")]
        assert begun.index("premium begins") == 2, "two of background fit beside the reserve, the third waits"
        assert engine.stats().counts.preemptions == {}
        with pytest.raises(EngineError, match="together more than the 256"):
            await anext(engine.generate(background(9, max_tokens=256)))


async def test_requests_without_a_limit_grow_and_the_last_one_is_evicted(home: Path) -> None:
    """Each is admitted with 60 expected tokens and generates 180: three of them do not fit."""
    async with tiered_engine(home, swap=0) as engine:
        alone = Listening(engine)
        for number in range(3):
            await alone.listen(background(number, max_tokens=180))
        together = Listening(engine)
        grown = [background(number, max_tokens=180, expected_tokens=OUTPUT) for number in range(3)]
        with EngineHold(engine, lambda tokens: sum(tokens.values()) > 2) as hold:
            tasks = [asyncio.create_task(together.listen(asked)) for asked in grown]
            await hold.held()
        await asyncio.gather(*tasks)
        assert engine.stats().counts.native >= 1
        assert together.texts == alone.texts
        assert set(together.counts.values()) == {180}


async def test_a_request_without_a_limit_fills_the_context(home: Path) -> None:
    async with tiered_engine(home, kv=256) as engine:
        listening = Listening(engine)
        await listening.listen(background(0, max_tokens=100_000, expected_tokens=OUTPUT))
        (input_tokens,) = [tenant.input_tokens for tenant in engine.stats().tenants.values()]
        assert input_tokens + listening.counts["b0"] == 256
        with pytest.raises(EngineError, match="256 fit with the answer"):
            await anext(engine.generate(background(1, body=greedy(PROMPT * 20), expected_tokens=OUTPUT)))


async def test_the_machine_is_measured_at_the_start(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By processor time of the engine's thread: the load of the machine must not look like a slow step."""
    from gpu_worker.engines.transformers.batch import PolicyRouter
    from gpu_worker.engines.transformers.engine import TransformersEngine, TransformersShape

    router = partial(PolicyRouter, monotonic_s=time.thread_time)
    monkeypatch.setattr("gpu_worker.engines.transformers.engine.PolicyRouter", router)

    shape = TransformersShape(batch=2, kv_tokens=1024, step_tokens=256, swap_bytes=SWAP_BYTES, calibrate=True)
    engine = TransformersEngine.load(make_policy("tiered:vtc"), model=None, home=home, shape=shape)
    await engine.start()
    try:
        found = engine._admission.calibration
        assert engine.stats().tenants == {}
        assert engine.stats().gauges.swap_bytes_total > 0
    finally:
        await engine.stop()
    assert found.kv_bytes_per_token == 2 * 2 * 128 * 4  # keys and values x layers x width x bytes
    assert 0 < found.prefill_s(64) < found.prefill_s(256) < inf
    assert 0 < found.swap_out_s(256) < inf
    assert found.decode_s > 0


def test_a_prompt_in_pieces_is_one_that_took_all_of_them() -> None:
    times = StepTimes()
    for tokens, context, seconds in ((64, 0, 1.0), (64, 64, 2.0), (32, 128, 4.0), (1, 160, 0.5)):
        times.note("alone", tokens, context, seconds)
    assert list(times.prefills) == [(64, 1.0), (128, 3.0), (160, 7.0)]
    assert list(times.decodes) == [(1, 0.5)]


def test_a_piece_without_the_pieces_before_it_is_not_counted() -> None:
    times = StepTimes()
    times.note("first", 64, 0, 1.0)
    times.note("second", 64, 64, 1.0)  # as long as the first one's next piece, but of another
    times.note("first", 64, 128, 1.0)  # its second piece shared a step with another request
    assert list(times.prefills) == [(64, 1.0)]


def test_the_first_of_a_length_may_be_slow() -> None:
    times = StepTimes()
    for tokens in (64, 128, 256):
        for slow in (10.0, 1.0, 1.0):
            times.note(f"{tokens}-{slow}", tokens, 0, slow * tokens / 1000)
    found = times.calibrated(UNCALIBRATED)
    assert found.prefill_s(256) == pytest.approx(0.256)


def test_a_line_has_no_square() -> None:
    assert fit([(1, 3.0), (10, 21.0), (100, 201.0)], degree=1) == pytest.approx((1.0, 2.0, 0.0))


async def test_all_that_is_computed_again_in_pieces_counts(home: Path) -> None:
    """The request is alone in the batch: a step that computes a piece of its prompt gives no token."""
    async with tiered_engine(home, kv=1024, batch=1) as engine:
        engine._admission.calibration = COPIES_ARE_DEAR
        listening = Listening(engine)
        long = background(0, body=greedy("Background: " + "what is served next, and what after that? " * 20))
        with EngineHold(engine, lambda tokens: bool(tokens.get("b0"))) as hold:
            victim = asyncio.create_task(listening.listen(long))
            await hold.held()
            paying = asyncio.create_task(listening.listen(premium()))
            await hold.entered("premium")
        await asyncio.gather(paying, victim)
        stats = engine.stats()
    assert stats.tenants["batch"].input_tokens > 3 * 64
    assert stats.counts.recomputed_tokens >= stats.tenants["batch"].input_tokens
    assert stats.counts.costs[Strategy.RECOMPUTE].measured == 1


@pytest.mark.parametrize("swap", [1 << 12, 1 << 20])
async def test_measuring_the_copies_leaves_nothing_behind(home: Path, swap: int) -> None:
    """Also where there is no room in the host's memory for a single block."""
    from gpu_worker.engines.transformers.engine import TransformersEngine, TransformersShape

    shape = TransformersShape(batch=2, kv_tokens=1024, step_tokens=64, swap_bytes=swap, calibrate=True)
    engine = TransformersEngine.load(make_policy("tiered:vtc"), model=None, home=home, shape=shape)
    await engine.start()
    try:
        stats, found = engine.stats(), engine._admission.calibration
        asked = own_order("r", "t", {"prompt": "What is served next?", "temperature": 0.0}, 8)
        heard = Listening(engine)
        await heard.listen(asked)
    finally:
        await engine.stop()
    assert (stats.gauges.swap_bytes_used, stats.kv_use) == (0, 0)
    assert 0 < found.swap_out_s(256) < inf
    assert 0 < found.swap_in_s(256) < inf
    assert heard.counts == {"r": 8}
