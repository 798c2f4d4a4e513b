"""A modelled gate with load: calls that arrive at random fronts, workers, and the longest queue that a reader sees."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from benchmarks.gate_model.fleet import ModelledFleet
from benchmarks.gate_model.load import Load

P99_S = 0.1
"""Of a request to DynamoDB."""
GATES = ("gate-1", "gate-2", "gate-3")
ELECTED_S = 3.0


class LoadedGate:
    """`run_s`: shortest and longest run of a call."""

    def __init__(self, fleet: ModelledFleet, load: Load, run_s: tuple[float, float]) -> None:
        self.fleet, self.load, self._run_s = fleet, load, run_s
        self.reader = fleet.replica("reader")
        self.most_waiting = 0

    async def watch(self) -> None:
        """Note the longest queue, twice a second."""
        while True:
            await self.reader.catch_up()
            waiting = (tenant.waiting for tenant in self.reader.shard.state.tenants.values())
            self.most_waiting = max(self.most_waiting, *waiting, 0)
            await asyncio.sleep(0.5)

    async def arrive(self, tenants: Sequence[int], calls_per_s: float, seconds: float) -> None:
        """Let calls of random tenants arrive at random fronts."""
        random, clock = self.fleet.random, self.fleet.clock
        began = clock.monotonic()
        for at in sorted(random.random() * seconds for _ in range(int(calls_per_s * seconds))):
            await asyncio.sleep(max(0.0, began + at - clock.monotonic()))
            self.load.arrive(random.choice(self.load.processes), random.choice(tenants), random.uniform(*self._run_s))


async def started(
    fronts: int,
    workers: Sequence[int],
    seed: int,
    run_s: tuple[float, float],
    *,
    queue_max: int,
    ttl_s: float,
    rates_per_s: Sequence[float] = (),
) -> LoadedGate:
    """Start gate processes, fronts and workers. `workers`: the slots of each; `rates_per_s`: as Load has them."""
    fleet = ModelledFleet(seed, p99_s=P99_S)
    for name in GATES:
        await fleet.gate(name)
    await asyncio.sleep(ELECTED_S)
    load = Load(fleet, waiting_max=queue_max, deadline_s=ttl_s, rates_per_s=rates_per_s)
    for number in range(fronts):
        load.add_process(f"front{number}")
    for number, slots in enumerate(workers):
        await load.add_worker(load.new_process(f"gpu{number}"), slots)
    return LoadedGate(fleet, load, run_s)
