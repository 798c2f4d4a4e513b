"""A pure gate before N workers of one request each, in virtual time; how long each request takes is given.

Source: BWFQ (2025), sections 3.3 and 3.5: homogeneous workers, one request each, a discrete-event simulation. What is
modelled is the arrivals and the service times; the gate is production code, told of arrivals, of true costs as requests
end, and of changes, in order of time. Nothing is random here, nothing preempted, and nothing fails.

Units: seconds; a cost is in whatever unit the gate is told its rates in. At one instant requests end before changes are
made, and these before others arrive. What has not started by `until_s` has no start: it waits still, or is stranded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from dispatcher.policies.clocks import Share
from dispatcher.policies.orders.interface import Dispatched, Gate

EPOCH_S = 1e6
"""What a gate's clock shows when a run begins: later than any bucket is deep, as on a real clock."""


class ClusterRequest(NamedTuple):
    """`estimate`: the cost that the gate is told at the arrival; None: the true one. `cost` None: the service time."""

    arrival_s: float
    tenant: str
    service_s: float
    cost: float | None = None
    estimate: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """Workers, capacity (cost units a second) or terms from `at_s` on; None and empty: as before."""

    at_s: float
    workers: int | None = None
    capacity_per_s: float | None = None
    share: Mapping[str, Share] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """What became of each request, by its place in `requests`."""

    requests: Sequence[ClusterRequest]
    starts_s: Sequence[float]
    """Infinite where it never started."""
    until_s: float
    queued: int
    """How many did not start at once."""
    waiting_most: int

    @property
    def dispatched(self) -> int:
        return sum(start < inf for start in self.starts_s)

    def waits_s(self, chosen: Callable[[ClusterRequest], bool]) -> list[float]:
        """Sorted; of one that never started, infinite."""
        pairs = zip(self.requests, self.starts_s, strict=True)
        return sorted(start - request.arrival_s for request, start in pairs if chosen(request))

    def completed(self, by_s: float) -> int:
        pairs = zip(self.requests, self.starts_s, strict=True)
        return sum(start + request.service_s <= by_s for request, start in pairs)

    def service(self, from_s: float, to_s: float) -> dict[str, float]:
        """Worker-seconds given to each tenant within the window."""
        given: dict[str, float] = {}
        for request, start in zip(self.requests, self.starts_s, strict=True):
            part = min(to_s, start + request.service_s) - max(from_s, start)
            given[request.tenant] = given.get(request.tenant, 0.0) + max(0.0, part)
        return given

    def shares(self, from_s: float, to_s: float) -> dict[str, float]:
        """Workers that each tenant held, on average, within the window."""
        return {tenant: given / (to_s - from_s) for tenant, given in self.service(from_s, to_s).items()}


def run_cluster(
    gate: Gate,
    requests: Sequence[ClusterRequest],
    *,
    share: Mapping[str, Share] | None = None,
    capacity_per_s: float | None = None,
    changes: Iterable[Change] = (),
    until_s: float = inf,
) -> ClusterRun:
    """Plays the requests, in order of arrival, on a gate made with as many slots as there are workers at first.

    Runs until nothing more can happen, or until `until_s`: requests that arrive later are not sent. Raises ValueError
    where arrivals are not in order.
    """
    return _Cluster(gate, requests, until_s).run([Change(0.0, None, capacity_per_s, share or {}), *changes])


class _Cluster:
    def __init__(self, gate: Gate, requests: Sequence[ClusterRequest], until_s: float) -> None:
        self.gate = gate
        self.requests = requests
        self.until_s = until_s
        self.starts_s = [inf] * len(requests)
        self.ends: list[tuple[float, int]] = []
        self.queued = self.waiting_most = 0

    def run(self, changes: Sequence[Change]) -> ClusterRun:
        to_come: Iterator[Change] = iter(sorted(changes, key=lambda change: change.at_s))
        change = next(to_come, None)
        last_s = 0.0
        for number, request in enumerate(self.requests):
            arrival_s = request.arrival_s
            if arrival_s < last_s:
                raise ValueError(f"request {number} arrives at {arrival_s}, before the one ahead of it: {last_s}")
            if arrival_s > self.until_s:
                break
            last_s = arrival_s
            while change is not None and change.at_s <= arrival_s:
                self._settle_until(change.at_s)
                self._apply(change)
                change = next(to_come, None)
            if self.ends and self.ends[0][0] <= arrival_s:
                self._settle_until(arrival_s)
            self._arrive(number, request)
        while change is not None and change.at_s <= self.until_s:
            self._settle_until(change.at_s)
            self._apply(change)
            change = next(to_come, None)
        self._settle_until(self.until_s)
        return ClusterRun(self.requests, self.starts_s, self.until_s, self.queued, self.waiting_most)

    def _arrive(self, number: int, request: ClusterRequest) -> None:
        arrival_s, tenant, service_s, cost, estimate = request
        told = estimate if estimate is not None else cost if cost is not None else service_s
        decision = self.gate.arrive(tenant, str(number), told, EPOCH_S + arrival_s)
        if type(decision) is Dispatched:
            self.starts_s[number] = arrival_s
            heappush(self.ends, (arrival_s + service_s, number))
            return
        self.queued += 1
        self.waiting_most = max(self.waiting_most, self.gate.waiting)

    def _settle_until(self, until_s: float) -> None:
        """Whatever ends until then, and whatever starts by it and ends in time."""
        ends, requests, settle = self.ends, self.requests, self.gate.settle
        while ends and ends[0][0] <= until_s:
            now_s, number = heappop(ends)
            _, _, service_s, cost, _ = requests[number]
            dispatched = settle(str(number), service_s if cost is None else cost, EPOCH_S + now_s)
            if dispatched is not None:
                self._started(dispatched, now_s)

    def _started(self, dispatched: Dispatched, now_s: float) -> None:
        number = int(dispatched.invocation_id)
        self.starts_s[number] = now_s
        heappush(self.ends, (now_s + self.requests[number].service_s, number))

    def _apply(self, change: Change) -> None:
        now = EPOCH_S + change.at_s
        for tenant, owed in change.share.items():
            self.gate.set_share(tenant, owed, now)
        if change.capacity_per_s is not None:
            self.gate.set_capacity(change.capacity_per_s, now)
        if change.workers is not None:
            for dispatched in self.gate.set_slots(change.workers, now):
                self._started(dispatched, change.at_s)
