"""Overload and an abuser at the gate: `python -m benchmarks.gate_overload [--seconds S] [--bar 6|7] [--json]`.

The reliability bars 6 and 7 for the gate, in virtual time: the production processes over the models of
benchmarks/gate_latency.py (DynamoDB with a P99 of 100 ms, a leader), with 1 and 8 fronts. Two workers with 16 slots;
calls run for 0.5 to 2.5 s, so the capacity is 21.3 calls a second. The HTTP front, its limits and its CPU are not part
of this.

bar 6  Four tenants, one of them with half of the calls, offer ten times the capacity; each queue takes 20 items, and a
       call waits at most 10 s (the queue's TTL). Then half of the capacity is offered. Goodput is the part of the
       slots' time in which a call runs.
bar 7  A tenant calls at 70 and 95 % of its share, which is half of the capacity and guaranteed to it: alone on half of
       the slots, then on all of them while another tenant offers 100 times its share. Waits, from `do` to the offer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.gate_model.fleet import ModelledFleet
from benchmarks.gate_model.load import COST, Load
from dispatcher.policies.percentiles import percentile
from headgate.simulator.virtual_time import run

FRONTS = (1, 8)
WORKERS, SLOTS = 2, 16
SERVICE_S = (0.5, 2.5)
CAPACITY_PER_S = WORKERS * SLOTS / (sum(SERVICE_S) / 2)
OVERLOAD, ABUSE, QUIET_LOADS = 10.0, 100.0, (0.7, 0.95)
QUEUE_MAX, TTL_S = 20, 10.0
SECONDS, WARMUP_S = 600.0, 5.0
GOODPUT_MIN, REFUSAL_MS_MAX, WAIT_RATIO_MAX = 0.95, 50.0, 1.2
P99_S = 0.1
QUIET, ABUSER = 0, 1


@dataclass(frozen=True)
class Overload:
    fronts: int
    seconds: float
    offered_per_s: float
    goodput: float
    """Of the capacity."""
    most_waiting: int
    waiting_max: int
    refused: int
    refusal_p99_ms: float
    without_retry_after: int
    p99_wait_after_s: float
    """Of the calls that arrive more than a queue's TTL after the overload."""


@dataclass(frozen=True)
class Abuse:
    fronts: int
    load: float
    """Of the quiet tenant's share."""
    seconds: float
    offered_per_s: float
    calls: int
    alone_p99_s: float
    abused_p99_s: float
    ratio: float


class Gate:
    """A fleet with load, and what a reader of the log sees."""

    def __init__(self, fleet: ModelledFleet, load: Load) -> None:
        self.fleet, self.load = fleet, load
        self.reader = fleet.replica("reader")
        self.most_waiting = 0

    async def watch(self) -> None:
        """Note the longest queue, twice a second."""
        while True:
            await self.reader.catch_up()
            waiting = (tenant.waiting for tenant in self.reader.shard.state.tenants.values())
            self.most_waiting = max(self.most_waiting, *waiting, 0)
            await asyncio.sleep(0.5)

    async def arrive(self, tenants: list[int], calls_per_s: float, seconds: float) -> None:
        """Let calls of random tenants arrive at random fronts."""
        random, began = self.fleet.random, self.fleet.clock.monotonic()
        for at in sorted(random.random() * seconds for _ in range(int(calls_per_s * seconds))):
            await asyncio.sleep(max(0.0, began + at - self.fleet.clock.monotonic()))
            self.load.arrive(random.choice(self.load.processes), random.choice(tenants), random.uniform(*SERVICE_S))


async def started(fronts: int, workers: int, seed: int, rates_per_s: Sequence[float] = ()) -> Gate:
    fleet = ModelledFleet(seed, p99_s=P99_S)
    for name in ("gate-1", "gate-2", "gate-3"):
        await fleet.gate(name)
    await asyncio.sleep(3.0)
    load = Load(fleet, waiting_max=QUEUE_MAX, deadline_s=TTL_S, rates_per_s=rates_per_s)
    for number in range(fronts):
        load.add_process(f"front{number}")
    for number in range(workers):
        await load.add_worker(load.new_process(f"gpu{number}"), SLOTS)
    return Gate(fleet, load)


async def overloaded(fronts: int, seconds: float, seed: int) -> Overload:
    gate = await started(fronts, WORKERS, seed)
    clock, measures = gate.fleet.clock, gate.load.measures
    watching = asyncio.ensure_future(gate.watch())
    begin = clock.monotonic() + WARMUP_S
    await gate.arrive([0, 0, 0, 1, 2, 3], OVERLOAD * CAPACITY_PER_S, WARMUP_S + seconds)
    end = clock.monotonic()
    await gate.arrive([0, 1, 2, 3], CAPACITY_PER_S / 2, TTL_S + 20.0)
    await gate.load.finish(60.0)
    watching.cancel()
    busy_s = sum(max(0.0, min(until, end) - max(since, begin)) for since, until in measures.runs)
    refusals_ms = [1e3 * took for calls in measures.fronts.values() for _, took in calls.refusals]
    later = [wait for calls in measures.fronts.values() for at, wait in calls.waits if at > end + TTL_S]
    return Overload(
        fronts,
        seconds,
        OVERLOAD * CAPACITY_PER_S,
        busy_s / (WORKERS * SLOTS * (end - begin)),
        gate.most_waiting,
        QUEUE_MAX,
        len(refusals_ms),
        percentile(refusals_ms, 0.99) or 0.0,
        measures.results["no_retry_after"],
        percentile(later, 0.99) or 0.0,
    )


async def quiet_waits(fronts: int, load: float, seconds: float, seed: int, *, abused: bool) -> list[float]:
    """Return the waits of the quiet tenant's calls."""
    share_per_s = CAPACITY_PER_S / 2
    gate = await started(fronts, WORKERS if abused else 1, seed, (COST * share_per_s,))
    works = [gate.arrive([QUIET], load * share_per_s, WARMUP_S + seconds)]
    if abused:
        works.append(gate.arrive([ABUSER], ABUSE * share_per_s, WARMUP_S + seconds))
    begin = gate.fleet.clock.monotonic() + WARMUP_S
    await asyncio.gather(*works)
    await gate.load.finish(60.0)
    return [wait for at, wait in gate.load.measures.tenants[QUIET].waits if at >= begin]


def abused(fronts: int, load: float, seconds: float, seed: int) -> Abuse:
    alone = run(quiet_waits(fronts, load, seconds, seed, abused=False))
    beside = run(quiet_waits(fronts, load, seconds, seed, abused=True))
    alone_s, abused_s = percentile(alone, 0.99) or 0.0, percentile(beside, 0.99) or 0.0
    offered = ABUSE * CAPACITY_PER_S / 2
    return Abuse(fronts, load, seconds, offered, len(beside), alone_s, abused_s, abused_s / alone_s)


def show(overloads: list[Overload], abuses: list[Abuse]) -> None:
    console = Console(width=140)
    table = Table(title=f"Bar 6: ten times the capacity of {CAPACITY_PER_S:.1f} calls a second")
    columns = ("fronts", "seconds", "offered/s", "goodput", "longest queue", "refused", "P99 of a refusal, ms")
    for column in (*columns, "without Retry-After", "P99 wait after one TTL, s"):
        table.add_column(column, justify="right")
    for row in overloads:
        queue = f"{row.most_waiting} of {row.waiting_max}"
        figures = (f"{row.offered_per_s:.0f}", f"{row.goodput:.1%}", queue, f"{row.refused:,}")
        times = (f"{row.refusal_p99_ms:.0f}", str(row.without_retry_after), f"{row.p99_wait_after_s:.3f}")
        table.add_row(str(row.fronts), f"{row.seconds:g}", *figures, *times)
    if overloads:
        console.print(table, f"At least {GOODPUT_MIN:.0%}; at most {REFUSAL_MS_MAX:g} ms.")
    table = Table(title="Bar 7: a tenant within its share, beside one at 100 times its share; waits in s")
    for column in (
        "fronts",
        "load",
        "seconds",
        "abuser/s",
        "its calls",
        "P99 alone on its share",
        "P99 beside",
        "ratio",
    ):
        table.add_column(column, justify="right")
    for line in abuses:
        waits = (f"{line.alone_p99_s:.3f}", f"{line.abused_p99_s:.3f}", f"{line.ratio:.2f}")
        counts = (f"{line.load:.0%}", f"{line.seconds:g}", f"{line.offered_per_s:.0f}", f"{line.calls:,}")
        table.add_row(str(line.fronts), *counts, *waits)
    console.print(table, f"Ratio at most {WAIT_RATIO_MAX:g}.")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate_overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="virtual seconds of overload and of abuse")
    parser.add_argument("--bar", type=int, choices=(6, 7), help="only this bar")
    parser.add_argument("--fronts", type=int, nargs="+", default=list(FRONTS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one object with stable keys instead of tables")
    arguments = parser.parse_args()
    seconds, seed, fronts = arguments.seconds, arguments.seed, arguments.fronts
    overloads = [run(overloaded(each, seconds, seed)) for each in fronts] if arguments.bar in (None, 6) else []
    abuses = []
    if arguments.bar in (None, 7):
        abuses = [abused(each, load, seconds, seed) for each in fronts for load in QUIET_LOADS]
    if arguments.json:
        report = {"overload": list(map(asdict, overloads)), "abuse": list(map(asdict, abuses))}
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        show(overloads, abuses)
    return 0


if __name__ == "__main__":
    sys.exit(main())
