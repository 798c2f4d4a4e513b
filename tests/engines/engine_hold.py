"""The engine's thread held after a chosen step, so that which of two threads is faster decides no test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tests.support.hang_guard import HANG_S


class EngineHold:
    """Hold a transformers engine once `enough(tokens by request)` is true after a step; go on at `release` or the exit.

    Enter it before the requests, then await `held`.
    """

    def __init__(self, engine: Any, enough: Callable[[dict[str, int]], bool]) -> None:
        self._router = engine._router
        self._enough = enough
        self._loop = asyncio.get_running_loop()
        self._held = asyncio.Event()
        self._released = threading.Event()

    def __enter__(self) -> EngineHold:
        deliver = self._router.deliver_batch

        def deliver_and_hold(outputs: list[Any]) -> None:
            deliver(outputs)
            if not self._released.is_set() and self._enough(self._tokens()):
                self._loop.call_soon_threadsafe(self._held.set)
                self._released.wait(HANG_S)

        self._router.deliver_batch = deliver_and_hold
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()
        del self._router.deliver_batch

    async def held(self) -> None:
        """Return once the engine is held."""
        await self._held.wait()

    async def entered(self, request_id: str) -> None:
        """Return once the engine has the request in its input queue."""
        while request_id not in self._router.live:
            await asyncio.sleep(0)

    def release(self) -> None:
        self._released.set()

    def _tokens(self) -> dict[str, int]:
        return {name: sequence.output_tokens for name, sequence in self._router.live.items()}
