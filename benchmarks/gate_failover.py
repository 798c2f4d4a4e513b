"""Faults of leaders and fronts in virtual time: `python -m benchmarks.gate_failover [--only TEXT] [--json]`.

The processes and the models of DynamoDB and network are those of benchmarks/gate_latency.py, with a DynamoDB P99 of
100 ms, three gate processes, six fronts and two workers on hosts of their own. Figures:

leader    500 commands a second of 10,000 active tenants (each has a call waiting). The leader is killed, its host is
          silent (cut off from all other hosts; it still reaches the table), or it is paused for two seconds. Times of
          the commands that begin within the second after the fault.
quiet     100 commands a second for ten minutes without a fault. Takeovers after the first.
front     Two fronts with a load of 1.1 times the slots; one front is killed. The wait (until the offer) of the other
          front's requests that arrive in the 20 s after it, beside the same run without the fault.
paused    One of the two fronts is paused for three seconds. Its calls that are lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.gate_model.fleet import ModelledFleet
from benchmarks.gate_model.load import Load
from dispatcher.policies.percentiles import percentile
from tests.support.world.virtual_time import run

GATES = ("gate-1", "gate-2", "gate-3")
P99_S = 0.1
TENANTS = 10_000
FRONTS, WORKERS = 6, 2
RATE, BEFORE_S, AFTER_S = 500.0, 5.0, 8.0
PAUSE_S, FRONT_PAUSE_S = 2.0, 3.0
QUIET_RATE, QUIET_S = 100.0, 600.0
FRONT_SLOTS, FRONT_LOAD, FRONT_BEFORE_S, FRONT_AFTER_S = 8, 1.1, 10.0, 20.0
FINISH_S = 120.0
TARGET_P99_MS, TARGET_WAIT_S = 500.0, 3.0
Fault = Callable[[ModelledFleet, Load], None]


@dataclass(frozen=True)
class Leader:
    fault: str
    seed: int
    commands: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    takeovers: int
    not_done: int


@dataclass(frozen=True)
class Quiet:
    seconds: float
    commands: int
    takeovers: int


@dataclass(frozen=True)
class Front:
    """Waits of the healthy front's requests, in seconds."""

    fault: str
    requests: int
    p50_wait_s: float
    p99_wait_s: float
    max_wait_s: float
    own_calls: int
    """Calls of the front that the fault befalls, of those that its host survives."""
    own_not_done: int
    others_not_done: int


def kill_leader(fleet: ModelledFleet, _load: Load) -> None:
    fleet.host(fleet.leader).kill()


def silence_leader(fleet: ModelledFleet, _load: Load) -> None:
    leader = fleet.leader
    for name in fleet.network.hosts:
        if name != leader:
            fleet.network.cut(leader, name)


def pause_leader(fleet: ModelledFleet, _load: Load) -> None:
    host = fleet.host(fleet.leader)
    host.pause()
    asyncio.get_running_loop().call_later(PAUSE_S, host.resume)


def kill_front(_fleet: ModelledFleet, load: Load) -> None:
    load.processes[0].host.kill()


def pause_front(_fleet: ModelledFleet, load: Load) -> None:
    host = load.processes[0].host
    host.pause()
    asyncio.get_running_loop().call_later(FRONT_PAUSE_S, host.resume)


def no_fault(_fleet: ModelledFleet, _load: Load) -> None:
    """The run that the others are compared with."""


LEADER_FAULTS: dict[str, Fault] = {"killed": kill_leader, "silent": silence_leader, "paused for 2 s": pause_leader}
FRONT_FAULTS: dict[str, Fault] = {"none": no_fault, "front killed": kill_front, "front paused for 3 s": pause_front}


async def started(seed: int, fronts: int, slots: int) -> tuple[ModelledFleet, Load]:
    fleet = ModelledFleet(seed, p99_s=P99_S)
    for name in GATES:
        await fleet.gate(name)
    await asyncio.sleep(3.0)
    load = Load(fleet)
    for number in range(fronts):
        load.add_process(f"front{number}")
    for number in range(WORKERS):
        await load.add_worker(load.new_process(f"gpu{number}"), slots)
    return fleet, load


async def arrive(fleet: ModelledFleet, load: Load, calls_per_s: float, seconds: float, tenants: int) -> None:
    """Let calls of random tenants arrive at random fronts; a tenant's calls always at the same front."""
    began = fleet.clock.monotonic()
    for at in sorted(fleet.random.random() * seconds for _ in range(int(calls_per_s * seconds))):
        await asyncio.sleep(max(0.0, began + at - fleet.clock.monotonic()))
        tenant = fleet.random.randrange(tenants)
        process = load.processes[tenant % len(load.processes)]
        if not process.host.dead:
            load.arrive(process, tenant)


async def leader_fault(fault: str, seed: int) -> Leader:
    fleet, load = await started(seed, FRONTS, 5_000)
    await load.add_waiting(TENANTS)
    await asyncio.sleep(1.0)
    before = fleet.takeovers
    fault_at = fleet.clock.monotonic() + BEFORE_S
    asyncio.get_running_loop().call_at(fault_at, LEADER_FAULTS[fault], fleet, load)
    await arrive(fleet, load, RATE / 2, BEFORE_S + AFTER_S, TENANTS)
    await load.finish(FINISH_S)
    took_ms = [1e3 * took for at, took in load.measures.commands if fault_at <= at < fault_at + 1.0]
    return Leader(
        fault,
        seed,
        len(took_ms),
        percentile(took_ms, 0.5) or 0.0,
        percentile(took_ms, 0.99) or 0.0,
        max(took_ms),
        fleet.takeovers - before,
        int(RATE / 2 * (BEFORE_S + AFTER_S)) - load.measures.results["done"],
    )


async def quiet(seconds: float, seed: int) -> Quiet:
    fleet, load = await started(seed, FRONTS, 500)
    before = fleet.takeovers
    await arrive(fleet, load, QUIET_RATE / 2, seconds, 100)
    await load.finish(FINISH_S)
    return Quiet(seconds, len(load.measures.commands), fleet.takeovers - before)


async def front_fault(fault: str, seed: int) -> Front:
    fleet, load = await started(seed, 2, FRONT_SLOTS)
    fault_at = fleet.clock.monotonic() + FRONT_BEFORE_S
    asyncio.get_running_loop().call_at(fault_at, FRONT_FAULTS[fault], fleet, load)
    calls_per_s = FRONT_LOAD * FRONT_SLOTS * WORKERS
    await arrive(fleet, load, calls_per_s, FRONT_BEFORE_S + FRONT_AFTER_S, 20)
    await load.finish(FINISH_S)
    ill, healthy = (load.measures.of(process.name) for process in load.processes)
    waits = [wait for at, wait in healthy.waits if at >= fault_at]
    return Front(
        fault,
        len(waits),
        percentile(waits, 0.5) or 0.0,
        percentile(waits, 0.99) or 0.0,
        max(waits),
        ill.begun,
        ill.begun - ill.results["done"],
        healthy.begun - healthy.results["done"],
    )


def show(leaders: list[Leader], calm: list[Quiet], fronts: list[Front]) -> None:
    console = Console(width=140)
    table = Table(title=f"A leader with {TENANTS:,} active tenants fails: commands of that second, ms")
    for column in ("leader", "seed", "commands", "P50", "P99", "max", "takeovers", "calls not done"):
        table.add_column(column, justify="right")
    for row in leaders:
        times = (f"{row.p50_ms:.0f}", f"{row.p99_ms:.0f}", f"{row.max_ms:.0f}")
        table.add_row(row.fault, str(row.seed), str(row.commands), *times, str(row.takeovers), str(row.not_done))
    console.print(table, f"Target: P99 below {TARGET_P99_MS:g} ms.")
    for line in calm:
        console.print(f"Without a fault: {line.seconds:g} s, {line.commands:,} commands, {line.takeovers} takeovers.")
    table = Table(title="One of two fronts fails: waits of the other front's requests in the 20 s after it, s")
    for column in ("fault", "requests", "P50", "P99", "max", "its calls", "not done", "others not done"):
        table.add_column(column, justify="right")
    for front in fronts:
        waits = (f"{front.p50_wait_s:.2f}", f"{front.p99_wait_s:.2f}", f"{front.max_wait_s:.2f}")
        counts = (str(front.own_calls), str(front.own_not_done), str(front.others_not_done))
        table.add_row(front.fault, str(front.requests), *waits, *counts)
    console.print(
        table, f"Targets: killed, at most {TARGET_WAIT_S:g} s longer than without; paused, none of its calls lost."
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate_failover", description=__doc__)
    parser.add_argument("--only", default="", choices=("", "leader", "quiet", "front"))
    parser.add_argument("--seeds", type=int, default=3, help="runs of each leader's fault")
    parser.add_argument("--quiet-seconds", type=float, default=QUIET_S)
    parser.add_argument("--json", action="store_true", help="one object with stable keys instead of tables")
    arguments = parser.parse_args()
    leaders, calm, fronts = [], [], []
    if arguments.only in ("", "leader"):
        pairs = [(fault, seed) for fault in LEADER_FAULTS for seed in range(1, arguments.seeds + 1)]
        leaders = [run(leader_fault(fault, seed)) for fault, seed in pairs]
    if arguments.only in ("", "front"):
        fronts = [run(front_fault(fault, 1)) for fault in FRONT_FAULTS]
    if arguments.only in ("", "quiet"):
        calm = [run(quiet(arguments.quiet_seconds, 1))]
    if arguments.json:
        parts: dict[str, list[Any]] = {"leaders": leaders, "quiet": calm, "fronts": fronts}
        report = {name: [asdict(row) for row in rows] for name, rows in parts.items()}
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        show(leaders, calm, fronts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
