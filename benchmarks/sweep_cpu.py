"""CPU of a sweep: `python -m benchmarks.sweep_cpu [--json]`.

headgate-sweep reads, once a minute, the entries that a pool's log has got since the last time (service/load_watch.py).
A row is such a minute: an arrival and an end for each invocation, with 100 tenants and 16 workers, in entries as a
leader writes them. The baseline is the fold of the same entries without anything else (Shard.fold after decode_entry).

`of its minute`: the part of the minute that the function needs, which has 512 MB and so 0.29 of a processor of AWS, if
that processor is as fast as this one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import process_time

from rich.console import Console
from rich.table import Table

from benchmarks.shard_traffic import Traffic
from dispatcher.model.commands import Command
from dispatcher.processes.bootstrap import RealClock
from dispatcher.service.load_watch import LoadWatch
from dispatcher.shard.codec import decode_entry
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard
from tests.support.world.memory_store import MemoryStore

RATES = (100, 500, 2_000)
"""Invocations a second."""
ENTRIES_PER_S = 50
"""At most: a leader's writes under load follow each other so fast (benchmarks/results/gate_latency.md)."""
MINUTE_S = 60
PROCESSOR = 512 / 1769
"""Lambda gives a whole processor at 1,769 MB."""
RUNNING = 1_024


@dataclass(frozen=True)
class Row:
    invocations_per_s: int
    commands: int
    entries: int
    bytes: int
    cpu_s: float
    fold_s: float

    @property
    def of_its_minute(self) -> float:
        return self.cpu_s / PROCESSOR / MINUTE_S


async def minute(rate: int) -> Row:
    """Return what a sweep needs for a minute at `rate` invocations a second."""
    log = MemoryStore(RealClock()).log("sweep")
    traffic = RecordedTraffic(tenants=100, workers=16, leases=RUNNING)
    watch, baseline = LoadWatch(log, ShardSettings(), RealClock()), Shard(ShardSettings())
    written = 0

    async def write() -> list[bytes]:
        nonlocal written
        new = traffic.entries[written:]
        for position, entry in enumerate(new, written):
            await log.append(position, entry)
        written += len(new)
        return new

    for entry in await write():
        baseline.fold(decode_entry(entry))
    await watch.load()
    commands, each = 2 * rate * MINUTE_S, max(1, 2 * rate // ENTRIES_PER_S)
    for _ in range(commands // each):
        traffic.entry(each)
    entries = await write()
    began = process_time()
    await watch.load()
    swept = process_time()
    for entry in entries:
        baseline.fold(decode_entry(entry))
    folded = process_time()
    return Row(rate, commands, len(entries), sum(map(len, entries)), swept - began, folded - swept)


class RecordedTraffic(Traffic):
    """Keeps its entries."""

    def __init__(self, *, tenants: int, workers: int, leases: int) -> None:
        self.entries: list[bytes] = []
        super().__init__(tenants=tenants, workers=workers, leases=leases)

    def write(self, commands: Sequence[Command]) -> bytes:
        self.entries.append(super().write(commands))
        return self.entries[-1]


def table_of(rows: Sequence[Row]) -> Table:
    table = Table(title="A sweep of one minute of a pool's log")
    for column in (
        "invocations/s",
        "commands",
        "entries",
        "MB",
        "CPU s",
        "us a command",
        "of the fold",
        "of its minute",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            f"{row.invocations_per_s:,}",
            f"{row.commands:,}",
            f"{row.entries:,}",
            f"{row.bytes / 1e6:.1f}",
            f"{row.cpu_s:.2f}",
            f"{1e6 * row.cpu_s / row.commands:.1f}",
            f"{row.cpu_s / row.fold_s:.2f}",
            f"{row.of_its_minute:.1%}",
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep_cpu", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one object with stable keys instead of a table")
    arguments = parser.parse_args()
    rows = [asyncio.run(minute(rate)) for rate in RATES]
    if arguments.json:
        sys.stdout.write(json.dumps({"rows": [asdict(row) for row in rows]}) + "\n")
    else:
        Console().print(table_of(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
