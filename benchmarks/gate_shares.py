"""Shares with many deciding processes beside those with one: `python -m benchmarks.gate_shares [--seconds S] [--json]`.

same order  The same arrivals and service times, in the same order, decided by 1, 4 and 20 processes over one log
            (half of the commands by the first process, the others by random ones), without latency. Every tenant's
            service is compared with one process's, to the token.
own order   Production processes in virtual time (benchmarks/gate_model; DynamoDB with a P99 of 100 ms), with a leader
            and without. Eight tenants with weights 1 to 4, always backlogged, with 2 to 20 times as many callers as
            their share of the slots; the calls of half of the tenants all come to the first process. The part of each
            tenant in the service of the measured time is compared with that of one process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from random import Random

from rich.console import Console
from rich.table import Table

from benchmarks.gate_model.fleet import ModelledFleet
from benchmarks.gate_model.load import Load
from dispatcher.model.call import CallTerms, TenantConfig
from dispatcher.model.commands import Accept, Command, End, Report, call_id
from dispatcher.model.facts import Dispatched, Entry
from dispatcher.service.gate.replica import Replica
from dispatcher.shard.codec import decode_entry
from dispatcher.shard.settings import ShardSettings
from tests.support.world.memory_store import MemoryStore
from tests.support.world.virtual_time import LoopClock, run

PROCESSES = (1, 4, 20)
WEIGHTS = (1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0)
CROWDS = (2, 20, 5, 10, 2, 20, 5, 10)
"""Callers of each tenant, as a multiple of its share of the slots."""
SLOTS, WORKERS = 16, 4
SECONDS, WARMUP_S = 200.0, 10.0
CALLS = 4_000
TARGET = 0.01


@dataclass(frozen=True)
class Same:
    processes: int
    calls: int
    entries: int
    differing_tenants: int
    """Tenants with another service than with one process."""
    service: dict[str, float]


@dataclass(frozen=True)
class Own:
    processes: int
    leader: bool
    calls: int
    shares: list[float]
    worst: float
    """The greatest relative difference of a tenant's share from that of one process."""


class SameOrder:
    """One history of arrivals and ends. Time stands still within a command, so that all runs have the same times."""

    def __init__(self, processes: int, seed: int) -> None:
        self._clock = LoopClock()
        self._arrivals, self._chooser = Random(seed), Random(seed + 1)
        self._log = MemoryStore(self._clock).log("s")
        self._replicas = [Replica(self._log, ShardSettings(), self._clock, f"p{number}") for number in range(processes)]
        self._ends: list[tuple[float, str, int, int]] = []

    async def run(self, calls: int) -> tuple[dict[str, float], int]:
        """Return each tenant's service, and the number of entries."""
        await self._do(Report("w", "http://w", "m", SLOTS, 8192, 1e3, 1e3, False, 0.0, 0, ()))
        for number in range(calls):
            await self._pass(self._arrivals.expovariate(1.2 * SLOTS))
            await self._do(self._accept(number))
        while self._ends:
            await self._pass(1.0)
        await self._replicas[0].catch_up()
        rows = self._replicas[0].shard.usage_rows()
        return {row.tenant: row.service for row in rows}, self._replicas[0].shard.position

    async def _pass(self, seconds: float) -> None:
        """Let time pass, and calls end."""
        until = self._clock.now() + seconds
        while self._ends and self._ends[0][0] <= until:
            at, ended, attempt, tokens = heappop(self._ends)
            await asyncio.sleep(max(0.0, at - self._clock.now()))
            await self._do(End(ended, attempt, "done", 40, tokens))
        await asyncio.sleep(max(0.0, until - self._clock.now()))

    async def _do(self, command: Command) -> None:
        """Decide the command at some process, and note the calls that begin."""
        choose = self._chooser.random() < 0.5
        replica = self._replicas[0] if choose else self._chooser.choice(self._replicas)
        await replica.catch_up()
        position = replica.shard.position
        await replica.commit([command])
        for data in await self._log.read(position):
            self._begin(decode_entry(data))

    def _begin(self, entry: Entry) -> None:
        for fact in entry.facts:
            if isinstance(fact, Dispatched):
                tokens = Random(fact.id).randrange(5, 200)
                heappush(self._ends, (self._clock.now() + tokens / 100, fact.id, fact.attempt, tokens))

    def _accept(self, number: int) -> Accept:
        tenant = min(int(self._arrivals.paretovariate(0.7)) - 1, len(WEIGHTS) - 1)
        now = self._clock.now()
        return Accept(
            call_id("front", number),
            0,
            "front",
            CallTerms(f"tenant-{tenant}", "m", 240.0, now + 3000, False, "", ""),
            TenantConfig(1, WEIGHTS[tenant], 20.0 * (tenant % 2), 500.0, "standard", 1_000_000),
        )


async def same_order(processes: int, calls: int, seed: int) -> tuple[dict[str, float], int]:
    return await SameOrder(processes, seed).run(calls)


async def own_order(processes: int, seconds: float, *, led: bool, seed: int) -> tuple[list[float], int]:
    """Return each tenant's share of the service, and the calls that ended."""
    fleet = ModelledFleet(seed, p99_s=0.1)
    for name in ("gate-1", "gate-2", "gate-3") if led else ():
        await fleet.gate(name)
    await asyncio.sleep(2.0)
    load = Load(fleet, weights=WEIGHTS)
    for number in range(processes):
        load.add_process(f"front{number}")
    for number in range(WORKERS):
        await load.add_worker(load.new_process(f"gpu{number}"), SLOTS // WORKERS)
    callers = [
        asyncio.ensure_future(_calls(load, tenant, number))
        for tenant, weight in enumerate(WEIGHTS)
        for number in range(round(CROWDS[tenant] * SLOTS * weight / sum(WEIGHTS)))
    ]
    replica = fleet.replica("reader")
    await asyncio.sleep(WARMUP_S)
    before = await _totals(replica)
    await asyncio.sleep(seconds)
    after = await _totals(replica)
    for task in callers:
        task.cancel()
    served = [after[f"tenant-{number}"] - before[f"tenant-{number}"] for number in range(len(WEIGHTS))]
    return [each / sum(served) for each in served], round(sum(served) / 100)


async def _calls(load: Load, tenant: int, number: int) -> None:
    """Call again and again. Tenants with an even number come to the first process only."""
    place = 0 if tenant % 2 == 0 else number % len(load.processes)
    while True:
        await load.arrive(load.processes[place], tenant, _service_s(tenant, number))


def _service_s(tenant: int, number: int) -> float:
    """Return how long a caller's calls run: from 0.5 to 1.5 s, so that they do not end together."""
    return 0.5 + ((tenant * 31 + number * 17) % 100) / 100


async def _totals(replica: Replica) -> dict[str, float]:
    await replica.catch_up()
    totals: dict[str, float] = {}
    for row in replica.shard.usage_rows():
        totals[row.tenant] = totals.get(row.tenant, 0.0) + row.service
    return totals


def measured(seconds: float, calls: int, seed: int) -> tuple[list[Same], list[Own]]:
    same: list[Same] = []
    for processes in PROCESSES:
        service, entries = run(same_order(processes, calls, seed))
        base = same[0].service if same else service
        differing = sum(service.get(tenant) != base.get(tenant) for tenant in {*service, *base})
        same.append(Same(processes, calls, entries, differing, service))
    own: list[Own] = []
    first: list[float] = []
    for led in (True, False):
        for processes in PROCESSES:
            shares, ended = run(own_order(processes, seconds, led=led, seed=seed))
            first = first or shares
            worst = max(abs(share / base - 1) for share, base in zip(shares, first, strict=True))
            own.append(Own(processes, led, ended, shares, worst))
    return same, own


def show(same: list[Same], own: list[Own]) -> None:
    console = Console(width=140)
    table = Table(title="The same arrival order: service of each tenant, beside that of one process")
    for column in ("processes", "calls", "entries", "tenants", "tenants that differ"):
        table.add_column(column, justify="right")
    for row in same:
        table.add_row(*map(str, (row.processes, row.calls, row.entries, len(row.service), row.differing_tenants)))
    console.print(table)
    table = Table(title=f"Own arrival order: shares of the service (target: within {TARGET:.0%} of one process)")
    for column in ("processes", "leader", "calls", *(f"weight {weight:g}" for weight in WEIGHTS), "worst"):
        table.add_column(column, justify="right")
    for line in own:
        shares = (f"{share:.2%}" for share in line.shares)
        way = "yes" if line.leader else "no"
        table.add_row(str(line.processes), way, f"{line.calls:,}", *shares, f"{line.worst:.2%}")
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate_shares", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="virtual seconds of each row of the second table"
    )
    parser.add_argument("--calls", type=int, default=CALLS, help="of each row of the first table")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one object with stable keys instead of tables")
    arguments = parser.parse_args()
    same, own = measured(arguments.seconds, arguments.calls, arguments.seed)
    if arguments.json:
        sys.stdout.write(
            json.dumps({"same": [asdict(row) for row in same], "own": [asdict(row) for row in own]}) + "\n"
        )
    else:
        show(same, own)
    return 0


if __name__ == "__main__":
    sys.exit(main())
