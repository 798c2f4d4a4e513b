"""Swaps of real engines: after many cycles the tokens are the same, and no memory stays behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from dispatcher.processes.bootstrap import RealClock
from gpu_worker.engines.interface import Engine, Token, own_order
from gpu_worker.engines.model_swaps import ModelSwaps
from gpu_worker.engines.registry import make_engine
from gpu_worker.engines.supervised import SupervisedEngine
from tests.engines.engine_kinds import KINDS

CYCLES = {"modelled": 20, "transformers": 4}
"""A start of the transformers engine measures the machine, which takes seconds. Twenty of its cycles passed by hand."""
GROWTH_BYTES_MAX = 100_000_000
"""Above what the allocator keeps after the first cycles."""


def models_of(kind: str, home: Path) -> list[str]:
    if kind == "modelled":
        return ["one", "two"]
    from gpu_worker.engines.random_llama import TinySize, build_tiny_model

    for number, name in enumerate(("one", "two")):
        build_tiny_model(home / name, TinySize(), weights_seed=number)
    return [str(home / name) for name in ("one", "two")]


async def answer(engine: SupervisedEngine, number: int) -> str:
    request = own_order(f"r{number}", "tenant", {"prompt": "once upon a time", "temperature": 0.0}, 12)
    return "".join([event.text async for event in engine.generate(request) if isinstance(event, Token)])


async def test_twenty_cycles_with_sleeping_engines(tmp_path: Path) -> None:
    def make(model: str) -> Engine:
        modelled = {"load_s": 0.02, "wake_s": 0.01, "sleep_bytes": 1000}
        return make_engine("modelled", policy="vtc", model=model, batch=2, home=tmp_path, modelled=modelled)

    engine = SupervisedEngine(lambda: make("one"), RealClock())
    await engine.start()
    try:
        swaps = await ModelSwaps.prepared(engine, [lambda: make("two")], RealClock(), 2000)
        awake = engine.asleep["two"]
        for cycle in range(20):
            for name in ("two", "one"):
                await swaps.load(name)
                assert await asyncio.wait_for(answer(engine, cycle), 60)
        assert engine.asleep == {"two": awake}, "it was never started again"
        assert (engine.swaps.done, engine.swaps.wakes, engine.swaps.wakes_failed) == (40, 42, 0)
    finally:
        await engine.stop()


@pytest.mark.parametrize("kind", KINDS)
async def test_every_cycle_gives_the_same_tokens_and_leaves_no_memory(kind: str, tmp_path: Path) -> None:
    def make(model: str) -> Engine:
        return make_engine(kind, policy="vtc", model=model, batch=2, home=tmp_path)

    first, second = models_of(kind, tmp_path)
    engine = SupervisedEngine(lambda: make(first), RealClock())
    await engine.start()
    try:
        swaps = await ModelSwaps.prepared(engine, [lambda: make(second)], RealClock())
        answers: dict[str, set[str]] = {"one": set(), "two": set()}
        used_bytes = []
        for cycle in range(CYCLES[kind]):
            for name in ("two", "one"):
                await swaps.load(name)
                answers[name].add(await asyncio.wait_for(answer(engine, 2 * cycle), 60))
            used_bytes.append(psutil.Process().memory_info().rss)
        assert [len(texts) for texts in answers.values()] == [1, 1]
        if kind == "transformers":
            assert answers["one"] != answers["two"]
        assert (engine.swaps.done, engine.swaps.failed, engine.restarts) == (2 * CYCLES[kind], 0, 0)
        assert used_bytes[-1] - used_bytes[0] < GROWTH_BYTES_MAX
    finally:
        await engine.stop()
