"""An engine with a script from the seed: its speed, its failures, and what it generates. It exchanges its model in a
while, and the exchange may fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from random import Random

from dispatcher.model.fleet import LoadableModel
from gpu_worker.engines.interface import (
    EngineError,
    EngineEvent,
    EngineFacts,
    EngineStats,
    Finished,
    PromptTooLong,
    Started,
    Token,
    WorkOrder,
)
from gpu_worker.engines.model_swaps import SwapFailed
from gpu_worker.service.health.failures import PROBE_TENANT
from tests.support.world.storm.records import Books, Execution, token_of

MODELS = ("m", "n", "o")
"""What the workers of a run can load: the first one, two or three."""
CONTEXT_TOKENS = 1000
HANG_S = 15.0
HALF, FULL = 0.5, 0.95


class StormEngine:
    """gpu_worker.engines.interface.Engine. `fails`: chance that an execution fails, hangs or is evicted."""

    def __init__(
        self,
        books: Books,
        worker: str,
        incarnation: int,
        seed: int,
        token_s: float,
        fails: float,
        model: str = MODELS[0],
    ) -> None:
        self._books, self._worker, self._incarnation = books, worker, incarnation
        self._seed, self._token_s, self.fails = seed, token_s, fails
        self.facts = EngineFacts(model, CONTEXT_TOKENS, 1.0)
        self.has_small_cache = False
        self.changed = asyncio.Event()
        self.running: dict[str, asyncio.Event] = {}
        self.most = 0
        """Most executions that ran at the same time."""

    async def generate(self, request: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
        name = request.execution
        random = Random(f"{self._seed} {name}")
        if request.terms.tenant == PROBE_TENANT:
            await asyncio.sleep(self._token_s)
            if random.random() < self.fails:
                raise EngineError("engine_failed", "by the script")
            yield Finished("length", 1, 1)
            return
        fails_at = random.randrange(-1, request.max_tokens) if random.random() < self.fails else None
        if fails_at == -1:
            self._books.refused.add(name)
            raise PromptTooLong("too long")
        execution = self._begin(name, len(request.body["prompt"]))
        aborted = self.running[name]
        token_s = self._token_s * (0.5 + random.random())
        try:
            yield Started(execution.input_tokens)
            while execution.output_tokens < request.max_tokens and not aborted.is_set():
                await self._wait(aborted, token_s)
                if aborted.is_set():
                    break
                if execution.output_tokens == fails_at:
                    await self._fail(random, aborted)
                    continue
                execution.output_tokens += 1
                yield Token(token_of(name, execution.output_tokens), execution.output_tokens)
            execution.reason = "aborted" if aborted.is_set() else "length"
        finally:
            execution.ended = True
            del self.running[name]
        yield Finished(execution.reason, execution.input_tokens, execution.output_tokens)

    def _begin(self, name: str, input_tokens: int) -> Execution:
        before = self._books.executions.get(name)
        if before is not None and (before.worker, before.incarnation) == (self._worker, self._incarnation):
            self._books.twice.append(name)
        execution = self._books.executions[name] = Execution(name, self._worker, self._incarnation, input_tokens)
        self.running[name] = asyncio.Event()
        self.most = max(self.most, len(self.running))
        return execution

    async def _fail(self, random: Random, aborted: asyncio.Event) -> None:
        """Fail, or hang for a while."""
        kind = random.choice(["failed", "preempted", "hang"])
        if kind == "hang":
            return await self._wait(aborted, HANG_S)
        raise EngineError("engine_failed" if kind == "failed" else "preempted", "by the script")

    async def _wait(self, aborted: asyncio.Event, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await aborted.wait()
        except TimeoutError:
            return

    async def abort(self, request_id: str) -> None:
        if request_id in self.running:
            self.running[request_id].set()

    @property
    def kv_use(self) -> float:
        """Return the part of its cache that is in use: nearly all of it while it works, if the cache is small."""
        return FULL if self.running and self.has_small_cache else HALF

    def stats(self) -> EngineStats:
        return EngineStats(0, len(self.running), self.kv_use, {})

    async def start(self) -> None:
        return None

    async def stop(self) -> None:
        return None


SWAP_S = 0.3
DRAIN_S = 2.0
FAILS = 0.2
"""The part of the swaps that fail while engines fail."""


class StormSwaps:
    """gpu_worker.engines.model_swaps.ModelSwaps, as far as a worker's swapper needs it."""

    def __init__(self, engine: StormEngine, count: int, random: Random, service_per_s: float = 0.0) -> None:
        """`service_per_s`: the throughput of each model until it is measured; 0: unknown."""
        self.engine = engine
        self._models = MODELS[:count]
        self._random = random
        self._service_per_s = service_per_s

    def can_load(self, model: str) -> bool:
        return model in self._models

    def step_s(self, model: str) -> float:
        return 0.0

    def loadable(self, loaded: str, service_per_s: Callable[[str], float]) -> tuple[LoadableModel, ...]:
        return tuple(
            LoadableModel(
                model,
                0.0 if model == loaded else SWAP_S,
                CONTEXT_TOKENS,
                1.0,
                service_per_s(model) or self._service_per_s,
            )
            for model in self._models
        )

    async def load(self, model: str) -> None:
        await asyncio.sleep(SWAP_S)
        if self.engine.fails and self._random.random() < FAILS:
            raise SwapFailed("by the script")
        self.engine.facts = EngineFacts(model, CONTEXT_TOKENS, 1.0)
