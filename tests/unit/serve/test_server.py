"""The server of `headgate serve`: pauses before restarts, workers that the log must name, a disk that fills up."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dispatcher.monitor.picture import Picture, WorkerPicture
from headgate.serve import server
from headgate.serve.server import FIRST_S, FREE_MIN_BYTES, MOST_S, STEADY_S, DiskWatch, Restarts, ServeOptions, Server
from tests.support.hang_guard import HANG_S
from tests.support.world.processes import World, in_virtual_time


def test_the_pause_doubles_up_to_its_bound() -> None:
    restarts, now, delays = Restarts(), 0.0, []
    for _ in range(10):
        restarts.started("worker-0", now)
        now += 1.0
        delays.append(restarts.delay("worker-0", now))
    assert delays[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert delays[-1] == MOST_S


def test_a_process_that_crashes_some_seconds_after_it_was_ready_is_started_ever_later() -> None:
    """For example an engine that its first calls crash: it costs every call that it begins an attempt."""
    restarts, now, delays = Restarts(), 0.0, []
    for _ in range(10):
        restarts.started("worker-0", now)
        now += 5.0
        delays.append(restarts.delay("worker-0", now))
        now += delays[-1] + 60.0  # until its model is loaded
    assert delays[-1] == MOST_S


def test_a_process_that_lived_long_starts_soon_again() -> None:
    restarts = Restarts()
    restarts.started("worker-0", 0.0)
    restarts.delay("worker-0", 1.0)
    restarts.delay("worker-0", 2.0)
    restarts.started("worker-0", 3.0)
    assert restarts.delay("worker-0", 3.0 + STEADY_S) == FIRST_S


def test_a_process_that_does_not_start_is_tried_ever_later() -> None:
    """Its last life does not count again, however long ago it ended."""
    restarts = Restarts()
    restarts.started("worker-0", 0.0)
    now, delays = 10 * STEADY_S, []
    for _ in range(10):
        delays.append(restarts.delay("worker-0", now))
        now += delays[-1]
    assert delays[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert delays[-1] == MOST_S


def test_each_process_has_its_own_pause() -> None:
    restarts = Restarts()
    assert [restarts.delay("front-0", 0.0) for _ in range(2)] == [FIRST_S, 2 * FIRST_S]
    assert restarts.delay("worker-0", 0.0) == FIRST_S


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


def test_each_change_is_reported_once() -> None:
    lines: list[str] = []
    watch = DiskWatch(Path("data"), lines.append)
    for free in (FREE_MIN_BYTES, FREE_MIN_BYTES - 1, 0, 2 * FREE_MIN_BYTES, FREE_MIN_BYTES, 2 * 2**20):
        watch.check(free)
    assert [line.partition(":")[0] for line in lines] == [
        "the disk of data has 64 MiB left",
        "the disk of data has space again",
        "the disk of data has 2 MiB left",
    ]


@in_virtual_time()
async def test_a_disk_that_fills_up_later_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines: list[str] = []
    monkeypatch.setattr(server, "FREE_MIN_BYTES", 0)
    watching = asyncio.create_task(DiskWatch(tmp_path, lines.append).run(World().clock))
    await asyncio.sleep(60.0)
    assert lines == []
    monkeypatch.setattr(server, "FREE_MIN_BYTES", 2**80)
    await asyncio.sleep(60.0)
    watching.cancel()
    assert len(lines) == 1
    assert str(tmp_path) in lines[0]
