"""Stops of a leader's event loop: `python -m benchmarks.leader_pauses [--tenants N] [--waiting N] [--baseline FOLDER]`.

A real leader (service/gate/leader.py) on a log in memory, with its state from a snapshot: many tenants, of which some
wait. One process sends it 5 ends and 5 arrivals every 10 ms over its session, as frames would bring them, for so many
seconds. So it passes minutes and seconds, at which old parts of the state are dropped.

A stop is the CPU time of one callback of the event loop, with all garbage collections in it. CPU time does not contain
the time for which other processes have the processor, but a busy processor's caches make it longer. The time until the
leader has loaded its snapshot does not count.

`--baseline`: the root of another version of headgate. The same measurement runs on it first, in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import subprocess
import sys
import time
from asyncio.events import Handle
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dispatcher.model.call import CallTerms, TenantConfig
from dispatcher.model.commands import Accept, Command, End, Report, Saved, call_id
from dispatcher.processes.bootstrap import NoLauncher, RealClock
from dispatcher.service.frames import Do, Hello
from dispatcher.service.gate.courier import Courier, Session
from dispatcher.service.gate.leader import Leader
from dispatcher.service.gate.replica import Replica
from dispatcher.shard.alone import LoneGate
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard
from dispatcher.shard.snapshot import dump
from tests.support.world.memory_store import MemoryStore

STEP_S = 0.01
EACH_STEP = 5
SLOTS = 64
BATCH = 400
LONG_MS = 10.0


class Stops:
    """The CPU times of the callbacks of all event loops, and of garbage collections, in milliseconds."""

    def __init__(self) -> None:
        self.callbacks: list[float] = []
        self.collections: list[float] = []
        self._begun = 0.0
        self._run = Handle._run

    def start(self) -> None:
        def timed(handle: Handle) -> None:
            begun = time.thread_time()
            self._run(handle)
            self.callbacks.append(1e3 * (time.thread_time() - begun))

        Handle._run = timed  # type: ignore[method-assign, assignment]
        gc.callbacks.append(self._note_collection)

    def stop(self) -> None:
        Handle._run = self._run  # type: ignore[method-assign]
        gc.callbacks.remove(self._note_collection)

    def _note_collection(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._begun = time.thread_time()
        else:
            self.collections.append(1e3 * (time.thread_time() - self._begun))


class NoConnection:
    """A connection to a client that reads everything and answers nothing."""

    def send(self, frame: bytes) -> None: ...

    async def receive(self) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def deliver(self, received: Callable[[bytes], None]) -> None:
        await asyncio.Event().wait()

    def close(self) -> None: ...


class Client:
    """Makes the commands of the process "p", which holds all calls."""

    def __init__(self, tenants: int, waiting: int) -> None:
        self._tenants, self._waiting = tenants, waiting
        self._numbers, self._turns = count(1), count()

    def report(self, slots: int = SLOTS) -> Report:
        return Report("w0", "http://h:1", "m", slots, 32768, 4.0, 2000.0, False, 0.5, 0, ())

    def arrival(self, tenant: int, now: float) -> Accept:
        number = next(self._numbers)
        until, rate_per_s = now + 850.0, 0.01 if tenant >= self._waiting else 0.0
        return Accept(
            call_id("p", number),
            max(0, number - 1000),
            "p",
            CallTerms(f"t{tenant}", "m", 100.0, until, False, f"app{tenant % 3}", f"chat{tenant}"),
            TenantConfig(1, 1.0, rate_per_s, 1000.0 if rate_per_s else 0.0, "standard", 100_000),
        )

    def step(self, shard: Shard, now: float) -> list[Command]:
        """Return the next ends and as many arrivals."""
        worker = shard.state.workers.get("w0")
        running = list(islice(worker.running.values(), EACH_STEP)) if worker is not None else []
        ends = [End(call.id, call.attempt, "done", 50, 50) for call in running if not call.cancelling]
        return [*ends, *(self.arrival(next(self._turns) * 7 % self._waiting, now) for _ in range(EACH_STEP))]


def loaded_shard(client: Client, tenants: int, waiting: int, now: float) -> Shard:
    """Return a shard with idle tenants that are remembered for hours, and with `waiting` tenants, each with a call."""
    gate = LoneGate(None, client.report(10**6), now=now, leader="a:1", epoch=1)
    for start in range(waiting, tenants, BATCH):
        gate.decide(*(client.arrival(each, now) for each in range(start, min(tenants, start + BATCH))))
        running = list(gate.shard.state.workers["w0"].running.values())
        gate.decide(*(End(call.id, call.attempt, "done", 50, 50) for call in running))
    gate.decide(client.report())
    for start in range(0, waiting + SLOTS, BATCH):
        numbers = range(start, min(waiting + SLOTS, start + BATCH))
        gate.decide(*(client.arrival(each % waiting, now) for each in numbers))
    return gate.shard


async def measure(tenants: int, waiting: int, seconds: float) -> dict[str, Any]:
    clock = RealClock()
    store = MemoryStore(clock)
    client = Client(tenants, waiting)
    shard = loaded_shard(client, tenants, waiting, clock.now())
    await store.log("s").save_snapshot(shard.position, "n", dump(shard))
    del shard
    replica = Replica(store.log("s"), ShardSettings(), clock, "b:1/x")
    if not await replica.take_over("b:1", 1):
        raise RuntimeError("another process leads")
    leader = _leader(replica, clock, Courier(store.mailboxes, NoLauncher(), clock))
    session = Session(NoConnection(), clock, Hello(1, "p", "front", ""))
    leader.on_joined(session)
    tasks = [asyncio.create_task(leader.run())]
    stops, begun, cpu = Stops(), clock.monotonic(), time.process_time()
    stops.start()
    blocks, number, reported, saved = sys.getallocatedblocks(), 0, 0.0, False
    while (passed := clock.monotonic() - begun) < seconds:
        commands = client.step(replica.shard, clock.now())
        if passed - reported > 1.0:
            reported = passed
            commands.append(client.report())
        if not saved and passed > seconds / 2:
            saved = True
            commands.append(Saved(replica.shard.position))
        leader.on_received(session, [Do(number + each, clock.now(), command) for each, command in enumerate(commands)])
        number += len(commands)
        await clock.sleep(STEP_S)
    cpu = time.process_time() - cpu
    stops.stop()
    waits, state = sorted(stops.callbacks), replica.shard.state
    result = {
        "tenants": len(state.tenants), "waiting": state.waiting, "commands": number, "callbacks": len(waits),
        "longest_ms": waits[-1], "second_ms": waits[-2], "p999_ms": waits[int(0.999 * len(waits))],
        "long": sum(each > LONG_MS for each in waits), "collection_ms": max(stops.collections, default=0.0),
        "collecting_ms": sum(stops.collections), "us_per_command": 1e6 * cpu / number,
        "blocks": sys.getallocatedblocks() - blocks, "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }  # fmt: skip
    leader.stop()
    for task in tasks:
        task.cancel()
    return {**result, "cycles": _garbage()}


def _leader(replica: Replica, clock: RealClock, courier: Courier) -> Leader:
    """Return a leader with the garbage collection of its version: frozen at the takeover, or service/garbage.py."""
    try:
        from dispatcher.service.garbage import Garbage
    except ImportError:
        gc.freeze()
        return Leader(replica, clock, courier)
    return Leader(replica, clock, courier, garbage=Garbage())


def _garbage() -> int:
    """Return the number of objects in reference cycles that a collection of everything finds."""
    gc.unfreeze()
    return gc.collect()


def table_of(rows: dict[str, dict[str, Any]]) -> Table:
    first = next(iter(rows.values()))
    table = Table(title=f"Stops of the leader's event loop: {first['tenants']:,} tenants, {first['waiting']:,} wait")
    columns = {
        "longest ms": "longest_ms", "second": "second_ms", "P99.9": "p999_ms", f"over {LONG_MS:.0f} ms": "long",
        "longest collection ms": "collection_ms", "all collections ms": "collecting_ms", "commands": "commands",
        "us/command": "us_per_command", "MB": "rss_mb", "in cycles": "cycles",
    }  # fmt: skip
    table.add_column("version")
    for column in columns:
        table.add_column(column, justify="right")
    for name, row in rows.items():
        values = (row[key] for key in columns.values())
        table.add_row(name, *(f"{each:.1f}" if isinstance(each, float) else f"{each:,}" for each in values))
    return table


def _measure_other(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run this file on the other version."""
    sizes = [f"--{name}={getattr(arguments, name)}" for name in ("tenants", "waiting", "seconds")]
    command = [sys.executable, str(Path(__file__).resolve()), *sizes, "--json"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(folder)}, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)["this"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leader_pauses", description=__doc__)
    parser.add_argument("--tenants", type=int, default=100_000)
    parser.add_argument("--waiting", type=int, default=10_000, help="tenants with a waiting call")
    parser.add_argument("--seconds", type=float, default=75.0, help="over 60, so that a minute passes")
    parser.add_argument("--baseline", type=Path, help="the root of another version")
    parser.add_argument("--json", action="store_true", help="one object with stable keys instead of a table")
    arguments = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    if arguments.baseline is not None:
        rows["baseline"] = _measure_other(arguments.baseline, arguments)
    rows["this"] = asyncio.run(measure(arguments.tenants, arguments.waiting, arguments.seconds))
    if arguments.json:
        sys.stdout.write(json.dumps(rows) + "\n")
    else:
        Console(width=160).print(table_of(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
