"""Puts the engines of a worker to sleep within a budget of host memory, or stops them.

    put away    make room ──▶ sleep ──▶ is the device's memory free? ── yes ──▶ asleep
                   └── no room, a failed sleep, too little memory free ──▶ stop

Room is made by stopping the engine that was used least recently. A sleep may return well and free nothing (reported of
vLLM), so the free memory of the device is measured: before an engine starts or wakes, while it serves, and after it was
put away. Where no memory can be measured, nothing is checked. A model whose sleeps or wake-ups fail FAILURES_MAX times
in a row is only stopped from then on.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from dispatcher.ports import Clock
from gpu_worker.engines.interface import Engine, SleepableEngine, sleepable
from gpu_worker.engines.supervised import SupervisedEngine

_QUERY = ("nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits")
_MIB = 1 << 20
_WAIT_S = 10.0


async def free_device_bytes() -> int | None:
    """Return the free bytes of all visible GPUs together, as nvidia-smi reports them; None without nvidia-smi, or if it
    does not answer.

    The worker itself must not measure with CUDA: its context would take some hundred megabytes of the memory.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = ("-i", visible) if visible else ()
    try:
        query = await asyncio.create_subprocess_exec(
            *_QUERY,
            *chosen,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return None
    try:
        async with asyncio.timeout(_WAIT_S):
            text, _ = await query.communicate()
        return sum(int(line) for line in text.decode().split("\n") if line) * _MIB if query.returncode == 0 else None
    except (TimeoutError, ValueError):
        return None
    finally:
        with suppress(ProcessLookupError):
            query.kill()


logger = logging.getLogger("headgate.engine")

_SLEEP_S = 120.0
_FREED_SHARE_MIN = 0.75
"""The part of the device memory that an engine took which must be free after its sleep or stop. A sleeping vLLM keeps
its CUDA context and graphs."""
_FREE_WAIT_S = 10.0
"""The device's memory may become free some seconds after the end of a process."""
_FREE_POLL_S = 0.5
FAILURES_MAX = 3

FreeBytes = Callable[[], Awaitable[int | None]]
"""Measures the free memory of the device; None if it cannot be measured."""


async def unmeasured() -> int | None:
    return None


@dataclass(eq=False)
class SleepingEngines:
    """Fills `engine.asleep`. `budget_bytes`: host memory for all sleeping engines together; 0: none ever sleeps."""

    engine: SupervisedEngine
    clock: Clock
    budget_bytes: int = 0
    free_bytes: FreeBytes = unmeasured
    _failures: Counter[str] = field(default_factory=Counter)
    """Failed sleeps and wake-ups in a row, by model."""
    _free_before: int | None = None
    """Free device memory before the engine that serves started or woke."""
    _taken: int | None = None
    """Device memory that the engine that serves took."""

    async def put_away(self, engine: Engine, wanted: str = "") -> None:
        """Put an engine to sleep, or stop it. `wanted`: the model that is loaded next. It is not stopped to make room.

        Raises what stopping raises.
        """
        sleeper = sleepable(engine)
        if sleeper is not None and await self._sleeps(sleeper, wanted):
            self.engine.asleep[engine.facts.model] = sleeper
            self.engine.swaps.sleeps += 1
            self._free_before = await self.free_bytes()
            self._taken = None
        else:
            await self.stop(engine)

    async def stop(self, engine: Engine) -> None:
        """Stop an engine, and wait until its device memory is free."""
        await self.engine.end(engine)
        if not await self._is_free():
            logger.error("the engine was stopped, but the device's memory is not free")
        self._free_before = await self.free_bytes()
        self._taken = None

    async def stop_all(self) -> None:
        """Stop every sleeping engine."""
        for model in list(self.engine.asleep):
            await self.evict(model)

    async def evict(self, model: str) -> None:
        """Stop a sleeping engine."""
        await self.engine.end(self.engine.asleep[model])
        del self.engine.asleep[model]
        self.engine.swaps.evicted += 1

    async def note_loaded(self) -> None:
        """Measure what the engine takes that serves now."""
        free = await self.free_bytes()
        self._taken = None if free is None or self._free_before is None else max(0, self._free_before - free)

    def note_wake(self, model: str, *, failed: bool) -> None:
        """Count a wake-up. It has failed if the model's tokens are not those of its first load."""
        if failed:
            self._failures[model] += 1
            self.engine.swaps.wakes_failed += 1
        else:
            self._failures[model] = 0
            self.engine.swaps.wakes += 1

    async def _sleeps(self, engine: SleepableEngine, wanted: str) -> bool:
        """Put the engine to sleep. Return False if it must be stopped instead."""
        model = engine.facts.model
        if self._failures[model] >= FAILURES_MAX or not await self._has_room(engine, wanted):
            return False
        try:
            async with asyncio.timeout(_SLEEP_S):
                await engine.fall_asleep()
            if await self._is_free():
                return True
            reason = "too little of the device's memory is free"
        except Exception as error:
            reason = str(error) or type(error).__name__
        self._failures[model] += 1
        self.engine.swaps.sleeps_failed += 1
        logger.error("the engine of %s is stopped, because its sleep failed: %s", model, reason)
        return False

    async def _has_room(self, engine: SleepableEngine, wanted: str) -> bool:
        """Stop sleeping engines, the least recently used one first, until this one fits the budget too.

        Return False, without a stop, if it would not fit even then. The wanted engine needs its memory until it is
        awake, so it counts.
        """
        asleep = self.engine.asleep
        needed = engine.sleep_bytes or 0
        kept = (asleep[wanted].sleep_bytes or 0) if wanted in asleep else 0
        if not self.budget_bytes or needed + kept > self.budget_bytes:
            return False
        for model in [model for model in asleep if model != wanted]:
            if needed + self.held_bytes() <= self.budget_bytes:
                break
            await self.evict(model)
        return True

    def held_bytes(self) -> int:
        """Return the host memory of all sleeping engines."""
        return sum(engine.sleep_bytes or 0 for engine in self.engine.asleep.values())

    async def _is_free(self) -> bool:
        """Wait until the device memory of the engine that was put away is free; at most _FREE_WAIT_S."""
        if self._free_before is None or self._taken is None:
            return True
        least = self._free_before - (1 - _FREED_SHARE_MIN) * self._taken
        until_s = self.clock.monotonic() + _FREE_WAIT_S
        while (free := await self.free_bytes()) is not None and free < least:
            if self.clock.monotonic() >= until_s:
                return False
            await self.clock.sleep(_FREE_POLL_S)
        return True
