"""Measure what the stores' requests cost: `python -m benchmarks.log_capacity [--json]`. Needs DynamoDB Local.

Units as DynamoDB bills them (`ReturnConsumedCapacity`), by production code: the shard makes the entries, and the
store writes and reads them. Traffic is half arrivals that begin at once, half ends. `per item`: by command of an
entry, or by request. Slow requests are not repeated here; in production at most 5 % of the log's are.
Aims: a poll of a mailbox one read unit; a durable invocation, 4 KB of request and 4 KB of answer, at most 12 write
units.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from random import Random
from string import ascii_letters
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.shard_traffic import LONGEST, NOW, SHORT, Names, Traffic, loaded_shard
from benchmarks.table_capacity import TABLE, CapacityMeter, metered_table
from dispatcher.model.kept import Invocation, StoredAnswer
from dispatcher.model.requests import Endpoint
from dispatcher.model.usage import UsageRow
from dispatcher.ports import Log
from dispatcher.processes.bootstrap import RealClock
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.snapshot import dump, load
from dispatcher.stores.dynamodb.store import DynamoStore

BATCHES = (1, 5, 20, 100, 500)
ENTRIES = 20
"""How many entries of each kind are measured for a mean."""
SNAPSHOTS = ((100, 0), (1_000, 500), (10_000, 5_000))
TEXT_BYTES = 4096
DURABLE_UNITS_MAX = 12


@dataclass(frozen=True)
class Row:
    what: str
    requests: float
    bytes: int
    write_units: float
    read_units: float
    per_item: float
    """Write units, or read units of a read, by command."""


class Bench:
    def __init__(self, client: Any, meter: CapacityMeter) -> None:
        self._meter = meter
        self.store = DynamoStore(client, TABLE, clock=RealClock(), random=Random(1), is_hedged=False)
        self.rows: list[Row] = []

    async def measure(
        self, what: str, call: Callable[[], Awaitable[object]], *, size: int = 0, times: int = 1, items: int = 1
    ) -> None:
        """Append a row with the means of `times` calls."""
        before = self._meter.taken()
        for _ in range(times):
            await call()
        used = self._meter.taken() - before
        writes, reads = used.write_units / times, used.read_units / times
        self.rows.append(Row(what, used.requests / times, size, writes, reads, (writes or reads) / items))

    async def run(self) -> None:
        for label, names, leases in (("", SHORT, 64), (", longest names", LONGEST, 1024)):
            await self._entries(label, names, leases)
        await self._tail()
        for tenants, waiting in SNAPSHOTS:
            await self._snapshot(tenants, waiting)
        await self._mailbox()
        await self._invocation()
        await self._read_models()

    async def _entries(self, label: str, names: Names, leases: int) -> None:
        for batch in BATCHES:
            traffic = Traffic(leases=max(leases, batch), workers=16, names=names)
            entries = [traffic.entry(batch) for _ in range(ENTRIES)]
            log, positions = self.store.log(f"b{batch}-{leases}"), iter(range(ENTRIES))

            async def append(log: Log = log, entries: list[bytes] = entries, positions: Any = positions) -> None:
                position = next(positions)
                await log.append(position, entries[position])

            mean = sum(map(len, entries)) // ENTRIES
            commands = f"{batch} command{'s' if batch > 1 else ''}"
            await self.measure(f"append, {commands}{label}", append, size=mean, times=ENTRIES, items=batch)

    async def _tail(self) -> None:
        log = self.store.log("b1-64")
        await self.measure("read the tail, nothing new", lambda: log.read(ENTRIES))
        await self.measure("read the tail, 1 entry", lambda: log.read(ENTRIES - 1))
        await self.measure(f"read the tail, {ENTRIES} entries of 1 command", lambda: log.read(0), items=ENTRIES)
        await self.measure("last entry", log.last)
        batched = self.store.log("b100-64")
        await self.measure(f"read {ENTRIES} entries of 100 commands", lambda: batched.read(0), items=ENTRIES * 100)

    async def _snapshot(self, tenants: int, waiting: int) -> None:
        shard = loaded_shard(tenants, waiting)
        state, log = dump(shard), self.store.log(f"s{tenants}")
        name = f"{tenants:,} tenants, {waiting:,} waiting"
        await self.measure(f"save a snapshot: {name}", lambda: log.save_snapshot(1, "nonce", state), size=len(state))
        await self.measure(f"load it: {name}", log.load_snapshot, size=len(state))
        found = await log.load_snapshot()
        assert found is not None
        assert load(found[1], ShardSettings()).position == shard.position

    async def _mailbox(self) -> None:
        box, news = self.store.mailboxes, [b"x" * 120]
        await self.measure("poll a mailbox, empty", lambda: box.read("process", 0))
        await self.measure("put news into a mailbox", lambda: box.put("process", 7, news), size=120)
        await self.measure("poll a mailbox, 1 piece of news", lambda: box.read("process", 6))
        await self.measure("poll a mailbox, news read before", lambda: box.read("process", 7))

    async def _invocation(self) -> None:
        text = "".join(Random(1).choices(ascii_letters, k=TEXT_BYTES))
        new = Invocation(
            "p8f3k2m9x1q4-zz", "t" * 64, "k" * 255, "default", "m" * 64, "f" * 64, NOW, NOW * 2, Endpoint.CHAT, text
        )
        answer = StoredAnswer("done", 1, 1000, 1000, text, NOW)
        before = self._meter.taken()
        await self.measure("create a durable invocation, 4 KB", lambda: self.store.create(new), size=TEXT_BYTES)
        await self.measure("get it", lambda: self.store.get(new.id), size=TEXT_BYTES)
        await self.measure("answer it, 4 KB", lambda: self.store.answer(new.id, answer), size=TEXT_BYTES)
        used = self._meter.taken() - before
        self.rows.append(
            Row("create, get and answer", used.requests, 0, used.write_units, used.read_units, used.write_units)
        )
        await self.measure("find its answer by its key", lambda: self.store.find(new.tenant, new.key), size=TEXT_BYTES)

    async def _read_models(self) -> None:
        row = UsageRow("t" * 64, "a" * 64, 500_000, 1, 2, 3, 4.5, position=6)
        await self.measure("put a row of usage", lambda: self.store.put_usage("s", [row]))
        states = loaded_shard(1, 0).tenant_rows()
        await self.measure("put the state of a tenant", lambda: self.store.put_tenant_rows("s", states))


def table_of(rows: list[Row]) -> Table:
    table = Table(title="Requests and capacity units, DynamoDB Local")
    table.add_column("")
    for column in ("requests", "bytes", "write units", "read units", "per item"):
        table.add_column(column, justify="right")
    for row in rows:
        size = f"{row.bytes:,}" if row.bytes else ""
        units = (f"{row.write_units:,.2f}", f"{row.read_units:,.2f}", f"{row.per_item:,.4f}")
        table.add_row(row.what, f"{row.requests:,.2f}", size, *units)
    return table


def measured() -> list[Row]:
    with metered_table() as (client, meter):
        bench = Bench(client, meter)
        asyncio.run(bench.run())
        return bench.rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.log_capacity", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one object with stable keys instead of a table")
    arguments = parser.parse_args()
    try:
        rows = measured()
    except FileNotFoundError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    durable = next(row for row in rows if row.what == "create, get and answer")
    if arguments.json:
        report = {"rows": [asdict(row) for row in rows], "durable_write_units_max": DURABLE_UNITS_MAX}
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        Console(width=120).print(table_of(rows))
    return 0 if durable.write_units <= DURABLE_UNITS_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
