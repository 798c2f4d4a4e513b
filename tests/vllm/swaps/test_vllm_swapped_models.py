"""A worker of two models with vLLM's own servers on a CPU: stops and starts, and the routes of its sleep.

vLLM frees no memory on a CPU: its server pauses its scheduler, which is headgate's, and goes on after the wake-up.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from dispatcher.processes.bootstrap import RealClock
from gpu_worker.engines import model_swaps
from gpu_worker.engines.interface import Engine, Token, own_order
from gpu_worker.engines.model_swaps import ModelSwaps
from gpu_worker.engines.random_llama import TinySize, build_tiny_model
from gpu_worker.engines.supervised import SupervisedEngine
from gpu_worker.engines.vllm.engine import VllmEngine, VllmShape
from gpu_worker.engines.vllm.process import weight_bytes
from tests.support.hang_guard import HANG_S

ARGUMENTS = ("--max-model-len", "960", "--num-gpu-blocks-override", "33")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_swaps, "CANARY_S", HANG_S)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path.cwd()), *sys.path]))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    for seed, name in enumerate(("one", "two")):
        build_tiny_model(folder / name, TinySize(), weights_seed=seed)
    return folder


def engine_of(home: Path, name: str, *, sleep_level: int = 0) -> VllmEngine:
    shape = VllmShape(batch=4, swap_bytes=20 << 20, calibrate=False, arguments=ARGUMENTS, sleep_level=sleep_level)
    return VllmEngine(model=str(home / name), home=home, shape=shape)


async def answer(engine: Engine | SupervisedEngine, name: str) -> str:
    request = own_order(name, "tenant", {"prompt": "What is served next?", "temperature": 0.0}, 12)
    return "".join([event.text async for event in engine.generate(request) if isinstance(event, Token)])


def engine_cores() -> int:
    return sum("EngineCore" in child.name() for child in psutil.Process().children(recursive=True))


async def test_a_swap_stops_a_server_and_starts_the_other(home: Path) -> None:
    engine = SupervisedEngine(lambda: engine_of(home, "one"), RealClock(), hang_s=HANG_S)
    await engine.start()
    try:
        before = await answer(engine, "before")
        swaps = await ModelSwaps.prepared(engine, [lambda: engine_of(home, "two")], RealClock())
        answers = []
        for number, name in enumerate(("two", "one")):
            await swaps.load(name)
            assert (engine.facts.model, engine_cores()) == (name, 1)
            answers.append(await answer(engine, str(number)))
        assert answers[1] == before
        assert answers[0] != before, "the other model's weights are others"
        assert (engine.swaps.done, engine.swaps.failed, engine.swaps.sleeps, engine.restarts) == (2, 0, 0, 0)
    finally:
        await engine.stop()
    assert engine_cores() == 0


async def test_the_server_sleeps_and_serves_the_same_tokens_after_it(home: Path) -> None:
    """Three times, with headgate's scheduler and connector. On a CPU the server starts without --enable-sleep-mode."""
    engine = engine_of(home, "one", sleep_level=1)
    assert engine.sleep_bytes == weight_bytes(home / "one") + (20 << 20)
    engine._words.remove("--enable-sleep-mode")
    await engine.start()
    try:
        before = await answer(engine, "before")
        for cycle in range(3):
            await engine.fall_asleep()
            await engine.wake()
            assert await answer(engine, str(cycle)) == before
    finally:
        await engine.stop()


async def test_the_cpu_build_refuses_to_sleep(home: Path) -> None:
    engine = engine_of(home, "one", sleep_level=1)
    with pytest.raises(RuntimeError, match="ended with exit code"):
        await engine.start()
    await engine.stop()
