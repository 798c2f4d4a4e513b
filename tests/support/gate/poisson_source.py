"""Poisson arrivals of one tenant, for a cluster in virtual time (headgate/simulator/gates/cluster.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from random import Random

from headgate.simulator.gates.cluster import ClusterRequest


@dataclass(frozen=True)
class Source:
    """`rate_per_s` requests of `cost_s` seconds, from `start_s` to `end_s`, `batch` at a time.

    `gap_s`: added between two batches, for bursts that let a bucket fill.
    """

    tenant: str
    rate_per_s: float
    cost_s: float = 1.0
    start_s: float = 0.0
    end_s: float = inf
    estimate_s: float | None = None
    batch: int = 1
    gap_s: float = 0.0

    def requests(self, random: Random, until_s: float) -> Iterator[ClusterRequest]:
        at_s = self.start_s
        while (at_s := at_s + self.gap_s + random.expovariate(self.rate_per_s / self.batch)) < min(self.end_s, until_s):
            for _ in range(self.batch):
                yield ClusterRequest(at_s, self.tenant, self.cost_s, estimate=self.estimate_s)
