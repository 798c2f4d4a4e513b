"""Overload at the gate: `python -m benchmarks.gate_overload [--seconds S] [--fronts N ...] [--json]`.

The reliability bar 6 for the gate, in virtual time: the production processes over the models of
benchmarks/gate_latency.py (DynamoDB with a P99 of 100 ms, a leader), with 1 and 8 fronts. Two workers with 16 slots;
calls run for 0.5 to 2.5 s, so the capacity is 21.3 calls a second. The HTTP front, its limits and its CPU are not part
of this; benchmarks/front_overload.py has them.

Four tenants, one of them with half of the calls, offer ten times the capacity; each queue takes 20 items, and a call
waits at most 10 s (the queue's TTL). Then half of the capacity is offered. Goodput is the part of the slots' time in
which a call runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.gate_model.loaded_gate import started
from dispatcher.policies.percentiles import percentile
from tests.support.world.virtual_time import run

FRONTS = (1, 8)
WORKERS, SLOTS = 2, 16
RUN_S = (0.5, 2.5)
CAPACITY_PER_S = WORKERS * SLOTS / (sum(RUN_S) / 2)
OVERLOAD = 10.0
QUEUE_MAX, TTL_S = 20, 10.0
SECONDS, WARMUP_S = 600.0, 5.0
GOODPUT_MIN, REFUSAL_MS_MAX = 0.95, 50.0


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


async def overloaded(fronts: int, seconds: float, seed: int) -> Overload:
    gate = await started(fronts, [SLOTS] * WORKERS, seed, RUN_S, queue_max=QUEUE_MAX, ttl_s=TTL_S)
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


def show(overloads: list[Overload]) -> None:
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
    console.print(table, f"At least {GOODPUT_MIN:.0%}; at most {REFUSAL_MS_MAX:g} ms.")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate_overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="virtual seconds of overload")
    parser.add_argument("--fronts", type=int, nargs="+", default=list(FRONTS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one object with stable keys instead of a table")
    arguments = parser.parse_args()
    overloads = [run(overloaded(fronts, arguments.seconds, arguments.seed)) for fronts in arguments.fronts]
    if arguments.json:
        sys.stdout.write(json.dumps({"overload": list(map(asdict, overloads))}) + "\n")
    else:
        show(overloads)
    return 0


if __name__ == "__main__":
    sys.exit(main())
