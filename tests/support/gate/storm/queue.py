"""The queue that launches durable calls, as SQS delivers: up to five times, in any order, and again after a failure."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from dispatcher.model.errors import AnsweredError
from dispatcher.operations.calls.detached import execute_detached
from tests.support.gate.storm.points import is_thrown

if TYPE_CHECKING:
    from tests.support.gate.storm.nodes import FrontNode
    from tests.support.gate.storm.world import World

TIMES_MAX = 5
RETRY_S = 3.0
VISIBLE_S = 70.0
"""A message is delivered again if its consumer has not ended after this time."""


class LaunchQueue:
    """ports.Launcher."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = Random(f"{world.weather.seed} queue")
        self._tasks: set[asyncio.Task[None]] = set()

    async def launch(self, invocation_id: str, attempt: int) -> None:
        times = self._random.randrange(1, TIMES_MAX) if self._random.random() < self._world.weather.duplicates else 1
        for _ in range(times):
            delay_s = 0.05 + self._random.random() ** 3 * (10.0 if times > 1 else 0.1)
            self._tasks.add(self._world.spawn(self._deliver(invocation_id, delay_s)))

    async def _deliver(self, call_id: str, delay_s: float) -> None:
        while True:
            await asyncio.sleep(delay_s)
            fronts = [front for front in self._world.fronts if front.is_up]
            if fronts and await self._consumed(self._random.choice(fronts), call_id):
                return
            delay_s = RETRY_S

    async def _consumed(self, front: FrontNode, call_id: str) -> bool:
        """False: the message is delivered again."""
        work = front.host.spawn(execute_detached(front.context, call_id))
        died = asyncio.ensure_future(front.died.wait())
        await asyncio.wait((work, died), timeout=VISIBLE_S, return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        if not work.done():
            return False
        error = work.exception()
        if error is not None and not isinstance(error, AnsweredError) and not is_thrown(error):
            self._world.violate("processes go on", f"execute_detached: {error!r}")
        return error is None
