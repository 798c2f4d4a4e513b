"""Capacity units of an invocation: `python -m benchmarks.gate_capacity [--only WHICH] [--seconds S] [--json]`.

Needs DynamoDB Local. The production code of the gate's processes and store sends its requests there, and DynamoDB
counts their units (`ReturnConsumedCapacity`). Time is virtual, with the latencies of benchmarks/gate_latency.py: so
as many commands meet in an entry as on AWS, and not as on this machine.

An invocation is an arrival at a front and an end at a worker, after a second. Everything else that happens meanwhile
is counted too and divided by the invocations: each worker's report each second, polls of mailboxes, the search for a
leader, heirs that follow the log, snapshots, projections. All names have their greatest length. `running`: attempts
that run all the time. A process on its own: one front, each worker's process, no leader. With a leader: four fronts, a
gate process beside each worker. `durable`: each call has a key, 4 KB of request and 4 KB of answer.

`snapshots`: those that were written in a row's seconds. The gate processes write one a minute, so a row of 60 s has
one. Without them the sweep (service/log_keeper.py) makes a snapshot each hour. It runs once at the end of such a row.
What it reads, the log of that row, is divided by the row's invocations, and what it writes by those of an hour.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.gate_model.fleet import SHARD, ModelledFleet
from benchmarks.gate_model.load import Load, Names
from benchmarks.table_capacity import CapacityMeter, Consumed, metered_table
from dispatcher.service.log_keeper import LogKeeper
from dispatcher.service.snapshots import UNSAVED_S
from dispatcher.stores.dynamodb.store import create_table
from tests.support.world.virtual_time import run

SECONDS, WARMUP_S = 60.0, 5.0
RUNNING = (0, 64, 256, 1024)
WORKERS = (1, 16)
FRONTS_LED, TENANTS = 4, 20
FOREVER_S = 1e6
SWEEP_S = UNSAVED_S
"""The sweep looks so often at a log of which no gate process makes snapshots."""
TEXT_BYTES = 4096
LONGEST = Names(tenant="t" * 58, app="a" * 64, model="m" * 64, worker="w" * 56)
TARGETS = {("alone", 20.0): (4.0, 4.0), ("leader", 100.0): (1.5, 1.0), ("leader", 500.0): (0.5, 0.5)}
"""Most write and read units of an invocation, by way and invocations a second."""
DURABLE_UNITS_MAX = 12.0


@dataclass(frozen=True)
class Scenario:
    way: str
    invocations_per_s: float
    workers: int
    running: int
    durable: bool = False


@dataclass(frozen=True)
class Row:
    way: str
    invocations_per_s: float
    workers: int
    running: int
    durable: bool
    invocations: int
    write_units: float
    read_units: float
    requests: float
    """Of an invocation, like the units."""
    snapshots: int


@dataclass(frozen=True)
class Rates:
    """What is used in each second while no call arrives."""

    what: str
    seconds: float
    read_units_per_s: float
    write_units_per_s: float
    requests_per_s: float


def scenarios() -> list[Scenario]:
    found = [
        Scenario(way, rate, workers, running)
        for way, rate in (("alone", 20.0), ("leader", 100.0))
        for workers in WORKERS
        for running in RUNNING
    ]
    found += [Scenario("leader", 500.0, 1, 64), Scenario("leader", 500.0, 16, 1024)]
    return [*found, Scenario("alone", 20.0, 1, 64, durable=True), Scenario("leader", 100.0, 16, 64, durable=True)]


async def started(scenario: Scenario, client: Any, table: str) -> tuple[ModelledFleet, Load]:
    fleet = ModelledFleet(1, client=client, table_name=table)
    for number in range(scenario.workers if scenario.way == "leader" else 0):
        await fleet.gate(f"gate{number:02}")
    await asyncio.sleep(3.0)
    load = Load(fleet, names=LONGEST, durable_bytes=TEXT_BYTES if scenario.durable else 0)
    for number in range(FRONTS_LED if scenario.way == "leader" else 1):
        load.add_process(f"front{number:07}")
    slots = (scenario.running + int(5 * scenario.invocations_per_s)) // scenario.workers + 1
    for number in range(scenario.workers):
        await load.add_worker(load.new_process(f"gpu{number:05}"), slots)
    for number in range(scenario.running):
        load.arrive(load.processes[number % len(load.processes)], number % TENANTS, FOREVER_S)
    await asyncio.sleep(1.0)
    return fleet, load


async def arrive(fleet: ModelledFleet, load: Load, calls_per_s: float, seconds: float) -> int:
    began, calls = fleet.clock.monotonic(), int(calls_per_s * seconds)
    for number, at in enumerate(sorted(fleet.random.random() * seconds for _ in range(calls))):
        await asyncio.sleep(max(0.0, began + at - fleet.clock.monotonic()))
        load.arrive(load.processes[number % len(load.processes)], fleet.random.randrange(TENANTS))
    await asyncio.sleep(max(0.0, began + seconds - fleet.clock.monotonic()))
    return calls


async def measured(scenario: Scenario, client: Any, table: str, meter: CapacityMeter, seconds: float) -> Row:
    fleet, load = await started(scenario, client, table)
    await arrive(fleet, load, scenario.invocations_per_s, WARMUP_S)
    before = meter.taken()
    calls = await arrive(fleet, load, scenario.invocations_per_s, seconds)
    used = meter.taken() - before
    swept = await kept_by_the_sweep(fleet, meter) if scenario.way == "alone" else Consumed()
    calls_an_hour = scenario.invocations_per_s * SWEEP_S
    return Row(
        scenario.way,
        scenario.invocations_per_s,
        scenario.workers,
        scenario.running,
        scenario.durable,
        calls,
        used.write_units / calls + swept.write_units / calls_an_hour,
        (used.read_units + swept.read_units) / calls,
        used.requests / calls + swept.requests / calls_an_hour,
        used.snapshots + swept.snapshots,
    )


async def kept_by_the_sweep(fleet: ModelledFleet, meter: CapacityMeter) -> Consumed:
    """Let the sweep read the log and make its snapshot, and return what that consumes."""
    store, before = fleet.store(), meter.taken()
    keeper = LogKeeper(store.log(SHARD), store.projections, fleet.settings, SHARD, fleet.clock, fleet.ids)
    await keeper.keep()
    return meter.taken() - before


async def idle(client: Any, table: str, meter: CapacityMeter, seconds: float, workers: int) -> Rates:
    """Let a fleet with a leader do nothing."""
    _fleet, load = await started(Scenario("leader", 0.0, workers, 0), client, table)
    await asyncio.sleep(WARMUP_S)
    before = meter.taken()
    await asyncio.sleep(seconds)
    what = f"{len(load.processes)} idle fronts, {workers} idle workers"
    return rates(what, seconds, meter.taken() - before)


def rates(what: str, seconds: float, used: Consumed) -> Rates:
    return Rates(what, seconds, used.read_units / seconds, used.write_units / seconds, used.requests / seconds)


async def polled(client: Any, table: str, meter: CapacityMeter, seconds: float) -> Rates:
    """Let one call run and one wait, on a worker with one slot, without a leader."""
    fleet = ModelledFleet(1, client=client, table_name=table)
    load = Load(fleet, names=LONGEST)
    front = load.add_process("front0000000")
    replica = fleet.replica("setup")
    worker = load.new_process("gpu00000")
    await load.add_worker(worker, 1)
    await replica.catch_up()
    load.arrive(front, 0, FOREVER_S)
    load.arrive(front, 1)
    await asyncio.sleep(WARMUP_S)
    worker.host.pause()
    before = meter.taken()
    await asyncio.sleep(seconds)
    used = meter.taken() - before
    worker.host.resume()
    return rates("a process without a connection, one call waiting", seconds, used)


def table_of(rows: list[Row]) -> Table:
    table = Table(title="Capacity units of an invocation, DynamoDB Local, longest names")
    for column in ("way", "invocations/s", "workers", "running", "durable", "write units", "read units", "requests"):
        table.add_column(column, justify="right")
    table.add_column("snapshots", justify="right")
    table.add_column("at most", justify="right")
    for row in rows:
        writes, reads = TARGETS[row.way, row.invocations_per_s]
        bound = f"{writes + DURABLE_UNITS_MAX * row.durable:g} and {reads:g}"
        counts = (f"{row.invocations_per_s:g}", str(row.workers), f"{row.running:,}", "yes" if row.durable else "")
        units = (f"{row.write_units:.2f}", f"{row.read_units:.2f}", f"{row.requests:.2f}")
        table.add_row(row.way, *counts, *units, str(row.snapshots), bound)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate_capacity", description=__doc__)
    parser.add_argument("--only", default="", choices=("", "alone", "leader", "polls", "idle"))
    parser.add_argument("--running", type=int, help="rows with so many running attempts only")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="virtual seconds of each row")
    parser.add_argument("--json", action="store_true", help="one object with stable keys instead of a table")
    arguments = parser.parse_args()
    numbers = count()
    try:
        with metered_table() as (client, meter):

            def new_table() -> str:
                name = f"capacity{next(numbers)}"
                create_table(client, name)
                return name

            chosen = [
                scenario
                for scenario in scenarios()
                if arguments.only in ("", scenario.way) and arguments.running in (None, scenario.running)
            ]
            rows = [run(measured(each, client, new_table(), meter, arguments.seconds)) for each in chosen]
            without_arrivals = []
            if arguments.only in ("", "polls"):
                without_arrivals.append(run(polled(client, new_table(), meter, 20.0)))
            if arguments.only in ("", "idle"):
                without_arrivals += [
                    run(idle(client, new_table(), meter, arguments.seconds, workers)) for workers in WORKERS
                ]
    except FileNotFoundError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if arguments.json:
        shown = {"rows": list(map(asdict, rows)), "without_arrivals": list(map(asdict, without_arrivals))}
        sys.stdout.write(json.dumps(shown) + "\n")
        return 0
    if rows:
        Console(width=120).print(table_of(rows))
    for used in without_arrivals:
        sys.stdout.write(
            f"{used.what}: {used.requests_per_s:.1f} requests/s, "
            f"{used.read_units_per_s:.1f} read and {used.write_units_per_s:.2f} write units/s.\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
