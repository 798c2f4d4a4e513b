"""vLLM's engines sleep and wake, and each failure ends with an engine that serves.

The server is a stand-in, a real process behind the real socket, because vLLM's own sleep needs a GPU.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from dispatcher.processes.bootstrap import RealClock
from gpu_worker.engines.interface import Engine, Token, own_order
from gpu_worker.engines.model_swaps import ModelSwaps
from gpu_worker.engines.supervised import SupervisedEngine
from gpu_worker.engines.vllm import process
from gpu_worker.engines.vllm.engine import VllmEngine, VllmShape
from gpu_worker.engines.vllm.process import weight_bytes
from tests.support.worker import sleeping_server

WEIGHT_BYTES = 1000
SWAP_BYTES = 24


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(bytes(WEIGHT_BYTES))
    monkeypatch.setattr(process, "SERVER", sleeping_server.__name__)
    return tmp_path


def engine_of(home: Path, name: str, *, sleep_level: int = 1) -> VllmEngine:
    shape = VllmShape(batch=2, swap_bytes=SWAP_BYTES, calibrate=False, sleep_level=sleep_level)
    return VllmEngine(model=str(home / name), home=home, shape=shape)


@asynccontextmanager
async def swapping(home: Path, level: int = 1) -> AsyncIterator[tuple[SupervisedEngine, ModelSwaps]]:
    """A worker with the models one (loaded) and two (asleep)."""
    engine = SupervisedEngine(lambda: engine_of(home, "one", sleep_level=level), RealClock())
    await engine.start()
    try:
        room = 2 * SWAP_BYTES + (2 * WEIGHT_BYTES if level == 1 else 0)

        def other() -> Engine:
            return engine_of(home, "two", sleep_level=level)

        yield engine, await ModelSwaps.prepared(engine, [other], RealClock(), room)
    finally:
        await engine.stop()


async def answer(engine: SupervisedEngine, name: str) -> str:
    request = own_order(name, "tenant", {"prompt": "p", "temperature": 0.0}, 3)
    return "".join([event.text async for event in engine.generate(request) if isinstance(event, Token)])


def servers() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [child for child in children if sleeping_server.__name__ in " ".join(child.cmdline())]


def test_its_sleep_takes_the_weights_and_the_space_for_swapped_kv(home: Path) -> None:
    assert engine_of(home, "one").sleep_bytes == WEIGHT_BYTES + SWAP_BYTES
    assert engine_of(home, "one", sleep_level=2).sleep_bytes == SWAP_BYTES
    assert engine_of(home, "one", sleep_level=0).sleep_bytes is None
    (home / "one" / "pytorch_model.bin").write_bytes(b"the same weights again")
    assert weight_bytes(home / "one") == WEIGHT_BYTES
    (home / "one" / "model.safetensors").unlink()
    (home / "one" / "pytorch_model.bin").unlink()
    with pytest.raises(ValueError, match="has no weights"):
        engine_of(home, "one")


@pytest.mark.parametrize("level", [1, 2])
async def test_cycles_keep_the_two_servers_and_their_tokens(home: Path, level: int) -> None:
    async with swapping(home, level) as (engine, swaps):
        before = {server.pid for server in servers()}
        for cycle in range(5):
            for name in ("two", "one"):
                await swaps.load(name)
                assert await answer(engine, f"{name}{cycle}") == 3 * f" {name}"
        assert {server.pid for server in servers()} == before
        assert len(before) == 2
        assert (engine.swaps.done, engine.swaps.wakes_failed, engine.swaps.sleeps_failed) == (10, 0, 0)
        assert [server.net_connections("inet") for server in servers()] == [[], []], "reachable over its socket only"
    assert servers() == []


async def test_a_server_that_does_not_sleep_has_no_routes_for_it(home: Path) -> None:
    engine = engine_of(home, "one", sleep_level=0)
    await engine.start()
    try:
        assert engine._http is not None
        assert (await engine._http.post("http://vllm/sleep?level=1")).status_code == 404
    finally:
        await engine.stop()


@pytest.mark.parametrize("fault", ["sleep fails", "sleep lies", "dies asleep", "nonsense"])
async def test_a_failed_sleep_ends_the_server(home: Path, fault: str) -> None:
    async with swapping(home) as (engine, swaps):
        (home / "one" / sleeping_server.FAULT).write_text(fault)
        await swaps.load("two")
        assert (engine.swaps.sleeps_failed, [*engine.asleep], len(servers())) == (1, [], 1)
        assert await answer(engine, "r") == 3 * " two"
        (home / "one" / sleeping_server.FAULT).unlink()
        await swaps.load("one")
        assert await answer(engine, "s") == 3 * " one"


@pytest.mark.parametrize(
    "fault", ["wake fails", "wake lies", "wake lies twice", "wrong after wake", "dies when woken", "nonsense"]
)
async def test_a_failed_wake_up_ends_the_server_and_starts_another(home: Path, fault: str) -> None:
    async with swapping(home) as (engine, swaps):
        (home / "two" / sleeping_server.FAULT).write_text(fault)
        before = {server.pid for server in servers()}
        await swaps.load("two")
        assert (engine.swaps.wakes_failed, engine.swaps.failed, engine.restarts) == (1, 0, 0)
        assert [*engine.asleep] == ["one"]
        after = {server.pid for server in servers()}
        assert len(after) == 2
        assert len(after - before) == 1
        assert await answer(engine, "r") == 3 * " two"


@pytest.mark.parametrize("fault", ["reload fails", "reloads nothing"])
async def test_weights_that_are_not_read_again_end_the_server(home: Path, fault: str) -> None:
    async with swapping(home, 2) as (engine, swaps):
        (home / "two" / sleeping_server.FAULT).write_text(fault)
        await swaps.load("two")
        assert engine.swaps.wakes_failed == 1
        assert await answer(engine, "r") == 3 * " two"


async def test_a_sleeping_server_that_was_killed_is_started_again(home: Path) -> None:
    async with swapping(home) as (engine, swaps):
        asleep = next(server for server in servers() if str(home / "two") in server.cmdline())
        asleep.kill()
        await asyncio.to_thread(asleep.wait, 10)
        await swaps.load("two")
        assert await answer(engine, "r") == 3 * " two"
        assert (engine.swaps.wakes_failed, len(servers())) == (1, 2)
