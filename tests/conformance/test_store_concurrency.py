"""Several writers of one log: tasks, threads and processes. No acknowledged entry is lost, none is there twice."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

from dispatcher.ports import Store
from tests.conformance.store_appender import append_all
from tests.conformance.store_backends import Place, SqlitePlace
from tests.conformance.store_world import SHARD, FakeClock
from tests.support.hang_guard import HANG_S

ROOT = Path(__file__).parents[2]
WRITERS, ENTRIES = 4, 15


def expected(acknowledged: dict[str, list[int]]) -> dict[int, bytes]:
    """Position -> entry."""
    return {
        position: f"{writer}/{number}".encode()
        for writer, positions in acknowledged.items()
        for number, position in enumerate(positions)
    }


async def whole_log(store: Store) -> dict[int, bytes]:
    return dict(enumerate(await store.log(SHARD).read(0)))


async def test_tasks_of_one_process_lose_nothing(store: Store) -> None:
    acknowledged: dict[str, list[int]] = {f"w{number}": [] for number in range(WRITERS)}
    log = store.log(SHARD)
    await asyncio.gather(*(append_all(log, name, ENTRIES, list_.append) for name, list_ in acknowledged.items()))
    assert await whole_log(store) == expected(acknowledged)


async def test_threads_lose_nothing(place: Place, clock: FakeClock) -> None:
    acknowledged: dict[str, list[int]] = {f"w{number}": [] for number in range(WRITERS)}
    stores = {name: place.open(clock) for name in acknowledged}

    async def write(name: str) -> None:
        await append_all(stores[name].log(SHARD), name, ENTRIES, acknowledged[name].append)
        await stores[name].close()

    threads = [threading.Thread(target=asyncio.run, args=(write(name),)) for name in acknowledged]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join, HANG_S)
    reader = place.open(clock)
    assert await whole_log(reader) == expected(acknowledged)
    assert sum(map(len, acknowledged.values())) == WRITERS * ENTRIES
    await reader.close()


def appender(writer: str, count: int, place: Place) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.conformance.store_appender", writer, str(count), *place.address]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


async def test_processes_lose_nothing(shared_place: Place, clock: FakeClock) -> None:
    processes = {f"w{number}": appender(f"w{number}", ENTRIES, shared_place) for number in range(3)}
    outputs = {name: process.communicate(timeout=HANG_S)[0] for name, process in processes.items()}
    assert [process.returncode for process in processes.values()] == [0, 0, 0]
    acknowledged = {name: [int(line) for line in output.split()] for name, output in outputs.items()}
    store = shared_place.open(clock)
    assert await whole_log(store) == expected(acknowledged)
    await store.close()


async def test_a_killed_process_loses_no_acknowledged_entry(tmp_path: Path, clock: FakeClock) -> None:
    """kill -9 in the middle of appends to SQLite, while another process appends. One entry may be unacknowledged."""
    place = SqlitePlace(tmp_path / "store.db")
    victim, other = appender("victim", 10**6, place), appender("other", 200, place)
    assert victim.stdout is not None
    before = [int(victim.stdout.readline()) for _ in range(50)]
    victim.kill()
    rest = [int(line) for line in victim.stdout.read().split("\n")[:-1]]  # communicate forgets what is buffered
    victim.wait(HANG_S)
    others = [int(line) for line in other.communicate(timeout=HANG_S)[0].split()]
    assert other.returncode == 0
    store = place.open(clock)
    found = await whole_log(store)
    acknowledged = expected({"victim": before + rest, "other": others})
    assert {position: found[position] for position in acknowledged} == acknowledged
    assert len(found) - len(acknowledged) <= 1
    assert await store.log(SHARD).append(len(found), b"next") == b"next"
    await store.close()


async def test_many_processes_may_open_a_new_file_at_once(tmp_path: Path, clock: FakeClock) -> None:
    place = SqlitePlace(tmp_path / "store.db")
    stores = await asyncio.gather(*(asyncio.to_thread(place.open, clock) for _ in range(8)))
    outcomes = await asyncio.gather(*(store.log(SHARD).append(0, b"%d" % n) for n, store in enumerate(stores)))
    assert len(set(outcomes)) == 1
    await asyncio.gather(*(store.close() for store in stores))
