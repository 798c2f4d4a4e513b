"""Time one BWFQ decision: `python -m benchmarks.bwfq_decision [--sizes 100 1000 …] [--decisions N] [--json]`.

One decision: a call ends (settled to its true cost, half of the estimates are wrong), another arrives (clocks updated,
queued), and the next is picked for the free slot. At each size every tenant waits with one call on average, so each
heap has one entry for each tenant. Half of the tenants have a guaranteed rate, and the buckets are neither always full
nor always empty. Four ways, each in turn with the baseline in the same process:

    bare     the minimum in CPython: a token bucket for each tenant, two heaps and one decision object
    order    BWFQ's order and index alone, on calls and tenants, without facts
    fcfs     the shard (decide, fold with undo, confirm) with the simplest order
    bwfq     the shard with BWFQ: the whole decision of production, but for bytes

Times are CPU times of the thread. Means are those of the median of 200 rounds, P99 is of all decisions. Bytes of state
are what tracemalloc finds.

The paper's figures (BWFQ, section 3.4): 35 us mean and 85 us P99, in Go, with 100 to 1,000 requests queued; "24 bytes"
a tenant, for the four numbers of 8 bytes that it lists.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import chain
from random import Random
from statistics import median
from time import thread_time_ns

from rich.console import Console
from rich.table import Table

from benchmarks.decision_ways import COST, Bare, OrderAlone, ShardWay, Way
from dispatcher.policies.percentiles import percentile
from dispatcher.shard.alone import CostGate

SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
DECISIONS = 40_000
ROUNDS = 200
CAPACITY_PER_S = 1_000.0
PAPER_MEAN_US, PAPER_P99_US, PAPER_BYTES = 35.0, 85.0, 24
TARGET_RATIO = 2.0
MEMORY_TENANTS = 20_000

WAYS: dict[str, Callable[[], Way]] = {
    "order": OrderAlone,
    "fcfs": lambda: ShardWay("fcfs"),
    "bwfq": lambda: ShardWay("bwfq"),
}


@dataclass(frozen=True)
class Row:
    """Microseconds a decision. `ratio`: of the means, to the bare one in the same rounds."""

    tenants: int
    way: str
    mean_us: float
    p99_us: float
    bare_mean_us: float
    ratio: float


class Bench:
    """One way and one number of tenants, beside the bare baseline on the same arrivals."""

    def __init__(self, way: str, tenants: int) -> None:
        self.way, self.random = way, Random(tenants)
        self.names = [f"t{number}" for number in range(tenants)]
        self.now = 1e6
        self.sent = 0
        self.ways: list[Way] = [WAYS[way](), Bare()]
        for each in self.ways:
            each.begin(self.names, CAPACITY_PER_S / tenants, self.now)
        gc.disable()
        for tenant in self.random.choices(self.names, k=tenants):
            for each in self.ways:
                each.arrive(tenant, self.now)
        gc.enable()

    def row(self, decisions: int) -> Row:
        """Time both in turn, in rounds, so that other work on the machine affects both."""
        spent_ns: list[list[list[int]]] = [[], []]
        gc.collect()
        gc.freeze()
        for _ in range(ROUNDS):
            tenants = self.random.choices(self.names, k=decisions // ROUNDS)
            for each, spent in zip(self.ways, spent_ns, strict=True):
                spent.append(self._round_ns(each, tenants))
            self.now += len(tenants) / CAPACITY_PER_S
        gc.unfreeze()
        overhead_ns = clock_ns()
        mean_us, p99_us = figures_us(spent_ns[0], overhead_ns)
        bare_us, _ = figures_us(spent_ns[1], overhead_ns)
        return Row(len(self.names), self.way, mean_us, p99_us, bare_us, mean_us / bare_us)

    def _round_ns(self, way: Way, tenants: list[str]) -> list[int]:
        now, spent_ns = self.now, []
        for number, tenant in enumerate(tenants):
            now += 1 / CAPACITY_PER_S
            way.prepare(tenant, COST if number % 2 else 0.5 * COST)
            begun = thread_time_ns()
            way.decide(now)
            spent_ns.append(thread_time_ns() - begun)
        return spent_ns


def clock_ns() -> float:
    """Return the nanoseconds that two clock reads add to each figure."""
    return median(-(thread_time_ns() - thread_time_ns()) for _ in range(10_001))


def figures_us(rounds_ns: list[list[int]], overhead_ns: float) -> tuple[float, float]:
    """Return the median round's mean (rounds on a busy machine do not count) and the P99 of all decisions."""
    mean = median(sum(spent_ns) / len(spent_ns) for spent_ns in rounds_ns)
    p99 = percentile(list(chain.from_iterable(rounds_ns)), 0.99) or 0.0
    return (mean - overhead_ns) / 1_000, (p99 - overhead_ns) / 1_000


def bytes_of(slots: int) -> float:
    """Return the bytes that the shard keeps for each tenant: one call of each runs, or waits if there are no slots."""
    names = [f"t{number}" for number in range(MEMORY_TENANTS)]
    gate = CostGate("bwfq", slots)
    ended = []
    tracemalloc.start()
    for name in names:
        called = gate.next_name()
        gate.submit(name, COST, 1e6)
        if slots:
            ended.append(called)
    for called in ended:
        gate.settle(called, COST, 1e6)
    del ended
    gate.shard.state.ends.clear()
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept / MEMORY_TENANTS


def table_of(rows: list[Row], bytes_idle: float, bytes_waiting: float) -> Table:
    table = Table(
        title="One BWFQ decision: an end, an arrival, a pick (microseconds)",
        caption=f"{bytes_idle:.0f} bytes of state a tenant, {bytes_waiting:.0f} with one call waiting; the paper "
        f"says {PAPER_BYTES}, and lists four fields of 8. Aim: ratio at most {TARGET_RATIO:g}.",
    )
    for column in ("tenants", "way", "mean", "P99", "bare", "ratio", "paper", "paper P99"):
        table.add_column(column, justify="right")
    for row in rows:
        with_paper = row.tenants <= 1_000 and row.way == "bwfq"
        paper = (f"{PAPER_MEAN_US:.0f}", f"{PAPER_P99_US:.0f}") if with_paper else ("", "")
        own = (row.mean_us, row.p99_us, row.bare_mean_us, row.ratio)
        table.add_row(f"{row.tenants:,}", row.way, *(f"{value:.2f}" for value in own), *paper)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bwfq_decision", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="TENANTS")
    parser.add_argument("--decisions", type=int, default=DECISIONS, help="at each size")
    parser.add_argument("--json", action="store_true", help="one object with stable keys instead of a table")
    arguments = parser.parse_args()
    if min(arguments.sizes) < 1 or arguments.decisions < ROUNDS:
        parser.error(f"sizes must be at least 1, decisions at least {ROUNDS}")
    rows = [Bench(way, size).row(arguments.decisions) for size in arguments.sizes for way in WAYS]
    bytes_idle, bytes_waiting = bytes_of(MEMORY_TENANTS), bytes_of(0)
    if arguments.json:
        paper = {"mean_us": PAPER_MEAN_US, "p99_us": PAPER_P99_US, "bytes_per_tenant": PAPER_BYTES}
        figures = {"bytes_per_tenant": bytes_idle, "bytes_per_waiting_tenant": bytes_waiting}
        report = {"rows": [asdict(row) for row in rows], **figures, "paper": paper, "target_ratio": TARGET_RATIO}
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        Console().print(table_of(rows, bytes_idle, bytes_waiting))
    return 0


if __name__ == "__main__":
    sys.exit(main())
