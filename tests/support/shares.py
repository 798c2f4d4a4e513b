"""What tests of fair shares have in common: max-min shares, a check of measured shares, Poisson arrivals, orders and
queue policies that are unfair on purpose, which the check must reject.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from random import Random

from dispatcher.policies.orders.baselines import FirstComeFirstServed
from dispatcher.policies.orders.queues import Clocks, Tenant
from gpu_worker.policies.fairness.interface import RequestRecord
from gpu_worker.policies.fairness.vtc import VirtualTokenCounter
from headgate.simulator.gates.cluster import ClusterRequest


def max_min_shares(
    capacity: float, demands: Mapping[str, float], weights: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return weighted max-min fair shares by progressive filling: none above its demand, the rest by weight."""
    weights = weights or dict.fromkeys(demands, 1.0)
    shares: dict[str, float] = {}
    while open_demands := {name: demand for name, demand in demands.items() if name not in shares}:
        level = (capacity - sum(shares.values())) / sum(weights[name] for name in open_demands)
        content = {name: demand for name, demand in open_demands.items() if demand <= level * weights[name]}
        if not content:
            return shares | {name: level * weights[name] for name in open_demands}
        shares |= content
    return shares


def check_shares(measured: Mapping[str, float], expected: Mapping[str, float], *, margin: float) -> None:
    """Raise AssertionError if a tenant's share differs by more than `margin`, relative to the expected share."""
    wrong = {
        name: f"{measured.get(name, 0.0):.2f}, not {share:.2f}"
        for name, share in expected.items()
        if abs(measured.get(name, 0.0) - share) > margin * share
    }
    assert not wrong, f"shares are wrong beyond {margin:.0%}: {wrong}"


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


FAVOURITE = "a"


class Favourite(FirstComeFirstServed):
    """First come, first served, but for one tenant that goes before all others. Not registered: a test enters it."""

    name = "favourite"

    def join(self, tenant: Tenant, now: float, virtual_time: float, *, deferred: bool = False) -> tuple[Clocks, float]:
        return tenant.clocks, 0.0 if tenant.name == FAVOURITE else 1.0


class FavouriteFirst(VirtualTokenCounter):
    """VTC, except that the waiting tenant with the first name is always next."""

    def _next_tenant(self) -> str | None:
        return min(self._queues, default=None)


class NearlyFair(VirtualTokenCounter):
    """VTC that does not charge every third prompt of tenant t0."""

    def _charge_prompt(self, record: RequestRecord) -> None:
        if record.request.tenant != "t0" or record.place % 3:
            super()._charge_prompt(record)
