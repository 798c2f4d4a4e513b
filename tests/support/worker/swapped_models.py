"""Engines of several models for a worker's swaps: scripted, with faults of their start, tokens, sleep or wake-up.

They share a device with DEVICE_BYTES of memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from dispatcher.model.fleet import Capability
from gpu_worker.engines.interface import Engine, EngineEvent, EngineFacts, SleepFailed, Token, WorkOrder
from gpu_worker.engines.model_swaps import ModelSwaps
from gpu_worker.engines.supervised import SupervisedEngine
from tests.support.worker.scripted_engine import ScriptedEngine
from tests.support.world.virtual_time import LoopClock

COMPLETES = frozenset({Capability.COMPLETION})
DEVICE_BYTES = 100
AWAKE_BYTES, ASLEEP_BYTES = 80, 4
"""What an engine takes of the device."""
SLEEP_BYTES = 10
"""The host memory of a sleeping engine."""


@dataclass
class Loaded(ScriptedEngine):
    """An engine of one model that takes `load_s` to start and `wake_s` to wake.

    `fails`: its start does; `wrong`: its tokens are others. `fault`: of its sleep or wake-up, see the methods.
    """

    load_s: float = 3.0
    wake_s: float = 1.0
    fails: bool = False
    wrong: bool = False
    fault: str = ""
    sleep_bytes: int | None = None
    is_started: bool = False
    is_stopped: bool = False
    is_asleep: bool = False
    device_bytes: int = 0

    async def start(self) -> None:
        await asyncio.sleep(self.load_s)
        if self.fails:
            raise RuntimeError("out of memory\nat line 3")
        self.is_started = True
        self.device_bytes = AWAKE_BYTES

    async def stop(self) -> None:
        self.is_stopped = True
        self.device_bytes = 0

    async def fall_asleep(self) -> None:
        assert not self.running
        if self.fault == "sleep hangs":
            await asyncio.Event().wait()
        if self.fault == "sleep fails":
            raise SleepFailed("POST /sleep: HTTP status 500")
        self.is_asleep = True
        if self.fault != "sleep frees nothing":
            self.device_bytes = ASLEEP_BYTES

    async def wake(self) -> None:
        if self.fault == "wake hangs":
            await asyncio.Event().wait()
        await asyncio.sleep(self.wake_s)
        if self.fault == "wake fails":
            raise SleepFailed("POST /wake_up: HTTP status 500")
        self.wrong = self.fault == "wrong after wake"
        self.is_asleep = self.fault == "wake lies"
        self.device_bytes = AWAKE_BYTES

    async def generate(self, request: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
        if self.is_asleep:
            await asyncio.Event().wait()
        async for event in super().generate(request):
            yield Token("wrong", event.output_tokens) if self.wrong and isinstance(event, Token) else event


class Models:
    """Makes engines, and keeps them. `faults`: of the next engines of a model, in order.

    `sleep_bytes`: of each engine; None: it cannot sleep. `most_asleep_bytes`: host memory of all sleeping engines, the
    most at any measurement of the device. `slower`: by which factor the starts of engines take longer from now on.
    """

    def __init__(self, sleep_bytes: int | None = None) -> None:
        self.made: list[Loaded] = []
        self.faults: dict[str, list[str]] = {}
        self.sleep_bytes = sleep_bytes
        self.most_asleep_bytes = 0
        self.slower = 1.0

    def make(self, model: str, load_s: float) -> Callable[[], Engine]:
        def make() -> Engine:
            fault = (self.faults.get(model) or [""]).pop(0)
            facts = EngineFacts(model, 1000, 1.0, COMPLETES)
            engine = Loaded(
                0.01, facts, load_s=load_s * self.slower, fails=fault == "fails", wrong=fault == "wrong",
                fault=fault, sleep_bytes=self.sleep_bytes,
            )  # fmt: skip
            self.made.append(engine)
            return engine

        return make

    def alive(self) -> list[str]:
        return [engine.facts.model for engine in self.made if not engine.is_stopped]

    def asleep(self) -> list[str]:
        return [engine.facts.model for engine in self.made if engine.is_asleep and not engine.is_stopped]

    async def free_bytes(self) -> int:
        self.most_asleep_bytes = max(self.most_asleep_bytes, len(self.asleep()) * (self.sleep_bytes or 0))
        return DEVICE_BYTES - sum(engine.device_bytes for engine in self.made)


async def prepared(models: Models, *others: str, sleep_memory_bytes: int = 0) -> tuple[SupervisedEngine, ModelSwaps]:
    async def at_once(make: Callable[[], Engine]) -> Engine:
        return make()

    clock = LoopClock()
    engine = SupervisedEngine(models.make("a", 2.0), clock, apart=at_once)
    await engine.start()
    makes = [models.make(name, 5.0) for name in others]
    swaps = await ModelSwaps.prepared(engine, makes, clock, sleep_memory_bytes, models.free_bytes)
    return engine, swaps
