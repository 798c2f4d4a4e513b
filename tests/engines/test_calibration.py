"""What the costs of a preemption are learned from, and what they really were: steps, pieces of prompts, copies."""

from __future__ import annotations

import asyncio
from math import inf
from pathlib import Path

import pytest

from gpu_worker.engines.interface import own_order
from gpu_worker.engines.step_costs import StepTimes, fit
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.preemption import UNCALIBRATED, Strategy
from tests.engines.engine_hold import EngineHold
from tests.engines.engine_kinds import needs_torch
from tests.engines.test_tiers import COPIES_ARE_DEAR, Listening, background, greedy, premium, tiered_engine

pytestmark = needs_torch


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


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
