"""Engines of several models for a worker's swaps: scripted, with faults at their start or in their tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from dispatcher.model.capabilities import Capability
from gpu_worker.engines.interface import Engine, EngineEvent, EngineFacts, EngineRequest, Token
from gpu_worker.engines.model_swaps import ModelSwaps
from gpu_worker.engines.supervised import SupervisedEngine
from headgate.simulator.virtual_time import LoopClock
from tests.support.worker.scripted_engine import ScriptedEngine

COMPLETES = frozenset({Capability.COMPLETION})


@dataclass
class Loaded(ScriptedEngine):
    """An engine of one model that takes `load_s` to start. `fails`: its start does; `wrong`: its tokens are others."""

    load_s: float = 3.0
    fails: bool = False
    wrong: bool = False
    is_started: bool = False
    is_stopped: bool = False

    async def start(self) -> None:
        await asyncio.sleep(self.load_s)
        if self.fails:
            raise RuntimeError("out of memory\nat line 3")
        self.is_started = True

    async def stop(self) -> None:
        self.is_stopped = True

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineEvent, None]:
        async for event in super().generate(request):
            yield Token("wrong", event.output_tokens) if self.wrong and isinstance(event, Token) else event


class Models:
    """Makes engines, and keeps them. `faults`: of the next engines of a model, in order."""

    def __init__(self) -> None:
        self.made: list[Loaded] = []
        self.faults: dict[str, list[str]] = {}

    def make(self, model: str, load_s: float) -> Callable[[], Engine]:
        def make() -> Engine:
            fault = (self.faults.get(model) or [""]).pop(0)
            facts = EngineFacts(model, 1000, 1.0, COMPLETES)
            engine = Loaded(0.01, facts, load_s=load_s, fails=fault == "fails", wrong=fault == "wrong")
            self.made.append(engine)
            return engine

        return make

    def alive(self) -> list[str]:
        return [engine.facts.model for engine in self.made if not engine.is_stopped]


async def prepared(models: Models, *others: str) -> tuple[SupervisedEngine, ModelSwaps]:
    async def at_once(make: Callable[[], Engine]) -> Engine:
        return make()

    clock = LoopClock()
    engine = SupervisedEngine(models.make("a", 2.0), clock, apart=at_once)
    await engine.start()
    swaps = await ModelSwaps.prepared(engine, [models.make(name, 5.0) for name in others], clock)
    return engine, swaps
