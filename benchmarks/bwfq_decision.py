"""Time one BWFQ decision: `python -m benchmarks.bwfq_decision [--sizes 100 1000 …] [--decisions N] [--json]`.

One decision: an invocation arrives (clocks updated, queued), another ends (settled to its true cost, half of the
estimates are wrong), and the next is picked. At each size every tenant waits with one request on average, so
each heap has one entry for each tenant. Half of the tenants have a guaranteed rate, and the buckets are neither always
full nor always empty. The baseline, in the same process and in turn, is the bare minimum in CPython: a token bucket
for each tenant, two heaps and one decision object. Means are those of the median of 200 rounds, P99 is of all
decisions. Bytes of state are what tracemalloc finds after every tenant has been here.

The paper's figures (BWFQ, section 3.4): 35 us mean and 85 us P99, in Go, with 100 to 1,000 requests queued; "24 bytes"
a tenant, for the four numbers of 8 bytes that it lists.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tracemalloc
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from itertools import chain
from random import Random
from statistics import median
from time import perf_counter_ns

from rich.console import Console
from rich.table import Table

from dispatcher.policies.clocks import Share
from dispatcher.policies.old_orders.bwfq import TwoClocks
from dispatcher.policies.old_orders.interface import Dispatched
from dispatcher.policies.percentiles import percentile

SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
DECISIONS = 40_000
ROUNDS = 200
SLOTS = 64
COST = 1.0
CAPACITY_PER_S = 1_000.0
PAPER_MEAN_US, PAPER_P99_US, PAPER_BYTES = 35.0, 85.0, 24
TARGET_RATIO = 3.0
MEMORY_TENANTS = 20_000


@dataclass(frozen=True, slots=True)
class Arrival:
    tenant: str
    invocation_id: str
    true_cost: float


@dataclass(frozen=True)
class Row:
    tenants: int
    mean_us: float
    p99_us: float
    bare_mean_us: float
    bare_p99_us: float
    ratio: float


class Bare:
    """A credit bucket for each tenant; one heap for tenants with credit, one for the rest. Nothing else."""

    def __init__(self, rate_per_s: float, burst: float) -> None:
        self.rate_per_s, self.burst = rate_per_s, burst
        self.buckets: dict[str, list[float]] = {}
        self.funded: list[tuple[float, int, str, str]] = []
        self.unfunded: list[tuple[float, int, str, str]] = []
        self.arrivals = 0

    def queue(self, tenant: str, invocation_id: str, now: float) -> None:
        bucket = self.buckets.get(tenant)
        if bucket is None:
            bucket = self.buckets[tenant] = [self.burst, now, 0.0]
        credit, updated_at, spent = bucket
        credit = min(self.burst, credit + (now - updated_at) * self.rate_per_s)
        self.arrivals += 1
        if credit >= COST:
            heappush(self.funded, (spent, self.arrivals, tenant, invocation_id))
            credit -= COST
        else:
            heappush(self.unfunded, (spent, self.arrivals, tenant, invocation_id))
        bucket[0], bucket[1], bucket[2] = credit, now, spent + COST

    def decide(self, arrival: Arrival, now: float) -> Dispatched:
        self.queue(arrival.tenant, arrival.invocation_id, now)
        _, _, tenant, invocation_id = heappop(self.funded or self.unfunded)
        return Dispatched(tenant, invocation_id, COST)


class Bench:
    """One number of tenants: the gate and the bare baseline on the same arrivals."""

    def __init__(self, tenants: int, random: Random) -> None:
        self.random = random
        self.names = [f"t{number}" for number in range(tenants)]
        self.now = 1_000.0
        self.sent = 0
        rate_per_s = CAPACITY_PER_S / tenants
        self.gate = TwoClocks(SLOTS, lead_max=1e6)
        share = Share(weight=1.0, rate_per_s=rate_per_s, burst=COST)
        for name in self.names[::2]:
            self.gate.set_share(name, share, self.now)
        self.bare = Bare(rate_per_s, COST)
        self.running: deque[tuple[str, float]] = deque()
        self.true_costs: dict[str, float] = {}
        for arrival in self.arrivals(tenants + SLOTS):
            self.bare.queue(arrival.tenant, arrival.invocation_id, self.now)
            if isinstance(self.gate.arrive(arrival.tenant, arrival.invocation_id, COST, self.now), Dispatched):
                self.running.append((arrival.invocation_id, arrival.true_cost))

    def arrivals(self, count: int) -> list[Arrival]:
        tenants = self.random.choices(self.names, k=count)
        self.sent += count
        numbered = enumerate(tenants, self.sent - count)
        return [Arrival(tenant, f"i{number}", COST if number % 2 else 0.5 * COST) for number, tenant in numbered]

    def gate_ns(self, arrivals: list[Arrival]) -> list[int]:
        """Return the durations of decisions: arrive, settle the longest-running invocation, pick."""
        arrive, settle, running, now = self.gate.arrive, self.gate.settle, self.running, self.now
        spent_ns: list[int] = []
        for arrival in arrivals:
            now += 1 / CAPACITY_PER_S
            ended, true_cost = running.popleft()
            begun = perf_counter_ns()
            arrive(arrival.tenant, arrival.invocation_id, COST, now)
            dispatched = settle(ended, true_cost, now)
            spent_ns.append(perf_counter_ns() - begun)
            if dispatched is not None:
                running.append((dispatched.invocation_id, arrival.true_cost))
        return spent_ns

    def bare_ns(self, arrivals: list[Arrival]) -> list[int]:
        decide, now = self.bare.decide, self.now
        spent_ns: list[int] = []
        for arrival in arrivals:
            now += 1 / CAPACITY_PER_S
            begun = perf_counter_ns()
            decide(arrival, now)
            spent_ns.append(perf_counter_ns() - begun)
        return spent_ns

    def row(self, decisions: int) -> Row:
        """Time both in turn, in rounds, so that other work on the machine affects both."""
        gate_ns: list[list[int]] = []
        bare_ns: list[list[int]] = []
        gc.collect()
        gc.freeze()
        for _ in range(ROUNDS):
            arrivals = self.arrivals(decisions // ROUNDS)
            gate_ns.append(self.gate_ns(arrivals))
            bare_ns.append(self.bare_ns(arrivals))
            self.now += len(arrivals) / CAPACITY_PER_S
        gc.unfreeze()
        overhead_ns = clock_ns()
        gate_mean, gate_p99 = figures_us(gate_ns, overhead_ns)
        bare_mean, bare_p99 = figures_us(bare_ns, overhead_ns)
        return Row(len(self.names), gate_mean, gate_p99, bare_mean, bare_p99, gate_mean / bare_mean)


def clock_ns() -> float:
    """Return the nanoseconds that two clock reads add to each figure."""
    return median(-(perf_counter_ns() - perf_counter_ns()) for _ in range(10_001))


def figures_us(rounds_ns: list[list[int]], overhead_ns: float) -> tuple[float, float]:
    """Return the median round's mean (rounds on a busy machine do not count) and the P99 of all decisions."""
    mean = median(sum(spent_ns) / len(spent_ns) for spent_ns in rounds_ns)
    p99 = percentile(list(chain.from_iterable(rounds_ns)), 0.99) or 0.0
    return (mean - overhead_ns) / 1_000, (p99 - overhead_ns) / 1_000


def bytes_of(use: Callable[[TwoClocks, list[str], list[str]], None]) -> float:
    """Return the bytes that the gate keeps for each tenant after `use`, without names and ids."""
    names = [f"t{number}" for number in range(MEMORY_TENANTS)]
    ids = [f"i{number}" for number in range(MEMORY_TENANTS)]
    gate = TwoClocks(MEMORY_TENANTS, forget=False)
    share = Share(weight=2.0, rate_per_s=3.0, burst=30.0)
    for name in names:
        gate.set_share(name, share, 0.0)
    tracemalloc.start()
    use(gate, names, ids)
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept / MEMORY_TENANTS


def idle(gate: TwoClocks, names: list[str], ids: list[str]) -> None:
    for number, (name, invocation_id) in enumerate(zip(names, ids, strict=True)):
        gate.arrive(name, invocation_id, 1.0 + number, float(number))
        gate.settle(invocation_id, 2.0 + number, float(number))


def all_wait(gate: TwoClocks, names: list[str], ids: list[str]) -> None:
    gate.set_slots(0, 0.0)
    for number, (name, invocation_id) in enumerate(zip(names, ids, strict=True)):
        gate.arrive(name, invocation_id, 1.0 + number, float(number))


def table_of(rows: list[Row], bytes_idle: float, bytes_waiting: float) -> Table:
    table = Table(
        title="One BWFQ decision: arrive, settle, pick (microseconds)",
        caption=f"{bytes_idle:.0f} bytes of state a tenant, {bytes_waiting:.0f} with one request waiting; the paper "
        f"says {PAPER_BYTES}, and lists four fields of 8. Aim: ratio at most {TARGET_RATIO:g}.",
    )
    for column in ("tenants", "mean", "P99", "bare", "bare P99", "ratio", "paper", "paper P99"):
        table.add_column(column, justify="right")
    for row in rows:
        paper = (f"{PAPER_MEAN_US:.0f}", f"{PAPER_P99_US:.0f}") if row.tenants <= 1_000 else ("", "")
        own = (row.mean_us, row.p99_us, row.bare_mean_us, row.bare_p99_us, row.ratio)
        table.add_row(f"{row.tenants:,}", *(f"{value:.2f}" for value in own), *paper)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bwfq_decision", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="TENANTS")
    parser.add_argument("--decisions", type=int, default=DECISIONS, help="at each size")
    parser.add_argument("--json", action="store_true", help="one object with stable keys instead of a table")
    arguments = parser.parse_args()
    if min(arguments.sizes) < 1 or arguments.decisions < ROUNDS:
        parser.error(f"sizes must be at least 1, decisions at least {ROUNDS}")
    rows = [Bench(size, Random(size)).row(arguments.decisions) for size in arguments.sizes]
    bytes_idle, bytes_waiting = bytes_of(idle), bytes_of(all_wait)
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
