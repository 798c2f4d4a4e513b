"""A pool of up to 1,000 workers and 10,000 tenants: `python -m benchmarks.fleet_scale [--largest N] [--json]`.

Each row is one size, and the first row is the baseline of the ratios:

    simulated   20 s of arrivals at 1.25 times the capacity, two thirds of them from one tenant that floods, in the
                fleet's simulator with the production's shard before it. The first tokens of all other tenants, under
                first come, first served and under headgate. Virtual time: no machine's load changes it.
    shard       the production's shard with 32 running calls on each worker, and three waiting calls of each tenant:
                CPU of a command in entries of 100 (decided, confirmed, encoded), bytes of the log for an invocation,
                the snapshot (bytes, CPU to make and to load), and the largest distance of a tenant from its weighted
                share of the service that was dispatched since all tenants wait, in requests.

`--largest`: leaves out larger fleets. All sizes take about six minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time

from rich.console import Console
from rich.table import Table

from dispatcher.model.commands import Command, End, Report
from dispatcher.policies.clocks import Share
from dispatcher.shard.alone import LoneGate
from dispatcher.shard.codec import encode_entry
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.snapshot import dump, load
from headgate.simulator.fleet.spec import read_fleet
from headgate.simulator.run import RunSpec
from headgate.simulator.simulate import simulate
from headgate.workloads.sources import open_workload

SIZES = ((10, 100), (100, 1_000), (1_000, 10_000))
SLOTS, WAITING_EACH, BATCH = 32, 3, 100
WEIGHTS = (1.0, 2.0, 4.0)
COST = 384.0
"""Of each call of the backlog, so that the distance from a share is a number of requests."""
ROUNDS_EACH = 4
"""Invocations for each tenant while the shares are measured."""
NOW = 1_800_000_000.0
PROCESS = "p8f3k2m9x1q4"
PLANNERS = ("fcfs", "plan")
TRAFFIC_S = 20.0
FLOOD, FLOOD_PER_S, OTHERS_PER_S = "flood", 3.0, 1.5
"""Requests a second for each worker; a worker serves about 3.6."""


class Backlog:
    """A shard in which every tenant waits all the time: for each call that ends, one of the same tenant arrives."""

    def __init__(self, workers: int, tenants: int) -> None:
        self.gate = LoneGate(leader="10.0.123.245:8472", epoch=3)
        for number in range(tenants):
            self.gate.set_tenant(f"tenant-{number}", Share(WEIGHTS[number % len(WEIGHTS)]))
        self.received: Counter[int] = Counter()
        """The calls of each tenant that were dispatched."""
        self.bytes = 0
        self.commands_s = 0.0
        self._tenants, self._now = tenants, NOW
        self._tenant_of: dict[str, int] = {}
        self._running: deque[tuple[str, int]] = deque()
        for start in range(0, workers, BATCH):
            self._write([_report(number) for number in range(start, min(start + BATCH, workers))])
        calls = SLOTS * workers + WAITING_EACH * tenants
        for start in range(0, calls, BATCH):
            self._write([self._accept(number % tenants) for number in range(start, min(start + BATCH, calls))])

    def turn(self, invocations: int) -> None:
        """End the oldest running calls, and let as many arrive, in entries of BATCH commands."""
        for _ in range(0, invocations, BATCH // 2):
            ended = [self._running.popleft() for _ in range(BATCH // 2)]
            arriving = [self._accept(self._tenant_of.pop(name)) for name, _ in ended]
            ends: list[Command] = [End(name, attempt, "done", 128, 128, first_token_s=0.1) for name, attempt in ended]
            self._write([*ends, *arriving])

    def _write(self, commands: Sequence[Command]) -> None:
        self._now += 0.01
        began = process_time()
        decided = self.gate.decide(*commands, now=self._now)
        if decided.entry is not None:
            self.bytes += len(encode_entry(decided.entry._replace(writer=PROCESS)))
        self.commands_s += process_time() - began
        for fact in decided.dispatched:
            self.received[self._tenant_of[fact.id]] += 1
            self._running.append((fact.id, fact.attempt))

    def _accept(self, tenant: int) -> Command:
        floor, deadline_at = max(0, self.gate.sent - 1_000_000), self._now + 1e6
        call = self.gate.new_call(
            f"tenant-{tenant}", COST, process=PROCESS, floor=floor, model="llama", deadline_at=deadline_at
        )
        self._tenant_of[call.id] = tenant
        return call


def _report(number: int) -> Report:
    url = f"http://10.0.{number // 250}.{number % 250}:8471"
    return Report(f"w{number}", url, "llama", SLOTS, 32_768, 131_072.0, 2_000.0, False, 0.5, 0, ())


@dataclass(frozen=True)
class ShardRow:
    workers: int
    tenants: int
    command_us: float
    invocation_bytes: float
    snapshot_bytes: int
    dump_s: float
    load_s: float
    furthest: float
    """The largest distance of a tenant from its weighted share, in requests."""


@dataclass(frozen=True)
class FleetRow:
    workers: int
    tenants: int
    requests: int
    planner: str
    others_p50_s: float
    """The median of the tenants' medians, without the flood's."""
    others_p99_s: float
    """The same, of the 99th percentiles."""
    flood_p50_s: float


def shard_row(workers: int, tenants: int) -> ShardRow:
    backlog = Backlog(workers, tenants)
    backlog.turn(SLOTS * workers + tenants)  # what ran before all waited
    backlog.received.clear()
    backlog.bytes, backlog.commands_s = 0, 0.0
    invocations = ROUNDS_EACH * max(tenants, 1_000)
    backlog.turn(invocations)
    began = process_time()
    state = dump(backlog.gate.shard)
    dumped = process_time()
    load(state, ShardSettings())
    return ShardRow(
        workers,
        tenants,
        backlog.commands_s / (2 * invocations) * 1e6,
        backlog.bytes / invocations,
        len(state),
        dumped - began,
        process_time() - dumped,
        _furthest(backlog.received, tenants),
    )


def _furthest(received: Counter[int], tenants: int) -> float:
    weights = [WEIGHTS[tenant % len(WEIGHTS)] for tenant in range(tenants)]
    each = sum(received.values()) / sum(weights)
    return max(abs(received[tenant] - each * weight) for tenant, weight in enumerate(weights))


def fleet_rows(workers: int, tenants: int) -> list[FleetRow]:
    """Simulate the same arrivals under each planner, from files as `headgate simulate` reads them."""
    with TemporaryDirectory() as folder:
        fleet, workload = Path(folder, "fleet.yaml"), Path(folder, "workload.csv")
        fleet.write_text(_fleet_text(workers))
        workload.write_text(_workload_text(workers, tenants))
        spec, arrivals = read_fleet(fleet), open_workload([str(workload)])
        return [_fleet_row(workers, tenants, RunSpec(arrivals, "fcfs", spec, planner=planner)) for planner in PLANNERS]


def _fleet_row(workers: int, tenants: int, spec: RunSpec) -> FleetRow:
    run = simulate(spec)
    firsts = {name: found.ttft_s for name, found in run.tenants.items() if found.ttft_s is not None}
    flood = firsts.pop(FLOOD)
    p50, p99 = (median(getattr(found, name) for found in firsts.values()) for name in ("p50", "p99"))
    return FleetRow(workers, tenants, run.all.requests, spec.planner, p50, p99, flood.p50)


def _fleet_text(workers: int) -> str:
    names = "".join(f"  - {{name: w{number}, kind: gpu, loaded: chat}}\n" for number in range(workers))
    return f"kinds:\n  gpu:\n    chat: {{engine: a10g-llama2-7b, swap_s: 2, slots: 20}}\nworkers:\n{names}"


def _workload_text(workers: int, tenants: int) -> str:
    """Return a CSV of Poisson arrivals."""
    random, at_s, lines = Random(1), 0.0, ["arrival_s,tenant,input_tokens,output_tokens"]
    while (at_s := at_s + random.expovariate(workers * (FLOOD_PER_S + OTHERS_PER_S))) < TRAFFIC_S:
        is_flood = random.random() * (FLOOD_PER_S + OTHERS_PER_S) < FLOOD_PER_S
        tenant = FLOOD if is_flood else f"t{random.randrange(tenants - 1)}"
        lines.append(f"{at_s:.4f},{tenant},128,128")
    return "\n".join(lines) + "\n"


def shard_table(rows: Sequence[ShardRow]) -> Table:
    table = Table(title="The shard, all tenants waiting")
    for heading in ("workers", "tenants", "µs/command", "ratio", "bytes/invocation", "snapshot", "made in", "loaded in",
                    "furthest from share"):  # fmt: skip
        table.add_column(heading, justify="right")
    for row in rows:
        ratio = f"{row.command_us / rows[0].command_us:.2f}"
        sizes = (f"{row.invocation_bytes:.0f}", f"{row.snapshot_bytes / 1e6:.2f} MB")
        times = (f"{row.dump_s:.2f} s", f"{row.load_s:.2f} s")
        table.add_row(f"{row.workers:,}", f"{row.tenants:,}", f"{row.command_us:.0f}", ratio, *sizes, *times,
                      f"{row.furthest:.1f} requests")  # fmt: skip
    return table


def fleet_table(rows: Sequence[FleetRow]) -> Table:
    table = Table(title="First tokens beside a flood, simulated")
    for heading in ("workers", "tenants", "requests", "planner", "others p50", "others p99", "flood p50"):
        table.add_column(heading, justify="right")
    for row in rows:
        times = (f"{row.others_p50_s:.2f} s", f"{row.others_p99_s:.2f} s", f"{row.flood_p50_s:.1f} s")
        table.add_row(f"{row.workers:,}", f"{row.tenants:,}", f"{row.requests:,}", row.planner, *times)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_scale", description=__doc__)
    parser.add_argument("--largest", type=int, default=SIZES[-1][0], help="workers of the largest fleet")
    parser.add_argument("--json", action="store_true", help="one object with stable keys instead of tables")
    arguments = parser.parse_args()
    sizes = [size for size in SIZES if size[0] <= arguments.largest] or [SIZES[0]]
    shards = [shard_row(*size) for size in sizes]
    fleets = [row for size in sizes for row in fleet_rows(*size)]
    if arguments.json:
        sys.stdout.write(json.dumps({"shards": list(map(asdict, shards)), "fleets": list(map(asdict, fleets))}) + "\n")
    else:
        console = Console(width=120)
        console.print(shard_table(shards))
        console.print(fleet_table(fleets))
    return 0


if __name__ == "__main__":
    sys.exit(main())
