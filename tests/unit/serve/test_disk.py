"""`headgate serve` says on its terminal that the disk is nearly full: its log files cannot."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headgate.serve import server
from headgate.serve.server import FREE_MIN_BYTES, DiskWatch
from tests.support.world.processes import World, in_virtual_time


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
