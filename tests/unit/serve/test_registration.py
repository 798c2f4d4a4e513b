"""`headgate serve` is ready when the log names every worker, also one that died and came back meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from dispatcher.monitor.picture import Picture, WorkerPicture
from headgate.serve.server import ServeOptions, Server
from tests.support.hang_guard import HANG_S


class DyingWorker:
    """The fleet and the log of a worker that dies before it registers. Each read of the log is one step of its life."""

    def __init__(self) -> None:
        self._step = 0

    def urls(self, _role: str) -> list[str]:
        return [["http://first"], [], ["http://second"]][min(self._step, 2)]

    async def catch_up(self) -> None:
        self._step += 1

    def picture(self, now: float) -> Picture:
        urls = ["http://second"] if self._step > 2 else []
        workers = [WorkerPicture("w-0", url, "the-model", "serving", 8, 0, 0.0, 4.0) for url in urls]
        return Picture(self._step, now, now, "", 0, (), (), tuple(workers), ())


async def test_a_worker_that_came_back_at_another_address_counts(tmp_path: Path) -> None:
    server = Server(ServeOptions(home=tmp_path), report=print)
    world: Any = DyingWorker()
    server._fleet = world
    async with asyncio.timeout(HANG_S):
        assert await server._await_workers(world, lambda _: None) == "the-model"
