"""A gate process says which former shards of its pool still have calls."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from dispatcher.model.shards import shard_name, shard_number
from dispatcher.monitor.follower import find_left_out
from dispatcher.processes.bootstrap import RealClock
from dispatcher.settings.config import load_config
from dispatcher.stores.sqlite.store import SqliteStore
from headgate.serve.folder import DataFolder
from tests.support.hang_guard import HANG_S
from tests.support.world.lone_shard import swap_report
from tests.unit.cli.gate_log import accept, make_folder, write


def made(path: Path) -> DataFolder:
    """Make a folder of a pool that had three shards, with a call in the last one."""
    folder = make_folder(path)
    write(folder.database, swap_report("w", "m", {"m": 1.0}), pool=shard_name("default", 1))
    write(folder.database, swap_report("w", "m", {"m": 1.0}), accept(1, "a"), pool=shard_name("default", 2))
    return folder


def test_only_calls_of_shards_that_are_not_served_are_left_out(tmp_path: Path) -> None:
    folder = made(tmp_path)

    async def find() -> dict[int, dict[str, int]]:
        store = SqliteStore(folder.database, RealClock())
        try:
            configs = [load_config({"HEADGATE_SHARDS": str(n), "HEADGATE_STORE": folder.store}) for n in range(1, 5)]
            return {config.shards: await find_left_out(store, config, RealClock()) for config in configs}
        finally:
            await store.close()

    assert asyncio.run(find()) == {1: {"default~2": 1}, 2: {"default~2": 1}, 3: {}, 4: {}}
    assert [shard_number(shard_name("default", number)) for number in range(3)] == [0, 1, 2]


def test_a_gate_process_names_them_with_what_to_do(tmp_path: Path) -> None:
    folder = made(tmp_path)
    environment = {
        **os.environ,
        "HEADGATE_STORE": f"sqlite:{folder.database}",
        "HEADGATE_WORKER_SECRET": folder.secret(),
    }
    gate = subprocess.Popen([sys.executable, "-m", "dispatcher"], env=environment, stderr=subprocess.PIPE, text=True)
    with gate:
        assert gate.stderr is not None
        line = gate.stderr.readline()
        gate.send_signal(signal.SIGTERM)
        gate.wait(HANG_S)
    assert "1 calls are in shard default~2" in line
    assert "set HEADGATE_SHARDS to 3" in line
