"""The gate before N workers that run one request each, in virtual time. Each request's service time is given.

Source: BWFQ (2025), sections 3.3 and 3.5: homogeneous workers, one request each, a discrete-event simulation. Only the
arrivals and the service times are modelled. The gate is the production's, alone (dispatcher/shard/alone.py); it gets
arrivals, true costs as requests end, and changes, in order of time. Nothing is random, preempted, or fails.

Units: seconds; a cost has the unit of the gate's rates. At one instant, requests end first, then changes are made, then
requests arrive. A request that has not started by `until_s` still waits, or will never be dispatched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from dispatcher.policies.clocks import Share
from dispatcher.shard.alone import EPOCH, CostGate, Decided


class ClusterRequest(NamedTuple):
    """`cost` None: the service time. `estimate`: the cost given to the gate at the arrival; None: the true cost."""

    arrival_s: float
    tenant: str
    service_s: float
    cost: float | None = None
    estimate: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """Workers, capacity (cost units a second) or shares from `at_s` on; None or empty: unchanged.

    A tenant's share changes with its next request, which carries its new configuration.
    """

    at_s: float
    workers: int | None = None
    capacity_per_s: float | None = None
    share: Mapping[str, Share] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """The outcome of each request, by its index in `requests`."""

    requests: Sequence[ClusterRequest]
    starts_s: Sequence[float]
    """Infinite for a request that never started."""
    until_s: float
    queued: int
    """How many requests did not start at once."""
    waiting_most: int

    @property
    def dispatched(self) -> int:
        return sum(start < inf for start in self.starts_s)

    def completed(self, by_s: float) -> int:
        pairs = zip(self.requests, self.starts_s, strict=True)
        return sum(start + request.service_s <= by_s for request, start in pairs)

    def service(self, from_s: float, to_s: float) -> dict[str, float]:
        """Return the worker-seconds that each tenant received within the window."""
        given: dict[str, float] = {}
        for request, start in zip(self.requests, self.starts_s, strict=True):
            part = min(to_s, start + request.service_s) - max(from_s, start)
            given[request.tenant] = given.get(request.tenant, 0.0) + max(0.0, part)
        return given

    def shares(self, from_s: float, to_s: float) -> dict[str, float]:
        """Return the mean number of workers that each tenant held within the window."""
        return {tenant: given / (to_s - from_s) for tenant, given in self.service(from_s, to_s).items()}


def run_cluster(
    gate: CostGate,
    requests: Sequence[ClusterRequest],
    *,
    share: Mapping[str, Share] | None = None,
    capacity_per_s: float | None = None,
    changes: Iterable[Change] = (),
    until_s: float = inf,
) -> ClusterRun:
    """Play the requests, in order of arrival, on a gate that has one slot for each worker at the start.

    Runs until nothing more can happen, or until `until_s`: requests that arrive later are not sent. Raises ValueError
    if the arrivals are not in order.
    """
    return _Cluster(gate, requests, until_s).run([Change(0.0, None, capacity_per_s, share or {}), *changes])


class _Cluster:
    def __init__(self, gate: CostGate, requests: Sequence[ClusterRequest], until_s: float) -> None:
        self.gate = gate
        self.requests = requests
        self.until_s = until_s
        self.starts_s = [inf] * len(requests)
        self.ends: list[tuple[float, int, str]] = []
        self.numbers: dict[str, int] = {}
        """The numbers of the calls that have not started, by id."""
        self.queued = self.waiting_most = 0

    def run(self, changes: Sequence[Change]) -> ClusterRun:
        upcoming: Iterator[Change] = iter(sorted(changes, key=lambda change: change.at_s))
        change = next(upcoming, None)
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
                change = next(upcoming, None)
            if self.ends and self.ends[0][0] <= arrival_s:
                self._settle_until(arrival_s)
            self._arrive(number, request)
        while change is not None and change.at_s <= self.until_s:
            self._settle_until(change.at_s)
            self._apply(change)
            change = next(upcoming, None)
        self._settle_until(self.until_s)
        return ClusterRun(self.requests, self.starts_s, self.until_s, self.queued, self.waiting_most)

    def _arrive(self, number: int, request: ClusterRequest) -> None:
        arrival_s, tenant, service_s, cost, estimate = request
        expected = estimate if estimate is not None else cost if cost is not None else service_s
        self.numbers[self.gate.next_name()] = number
        self._start(self.gate.submit(tenant, expected, EPOCH + arrival_s), arrival_s)
        if self.starts_s[number] == inf:
            self.queued += 1
            self.waiting_most = max(self.waiting_most, self.gate.waiting)

    def _settle_until(self, until_s: float) -> None:
        """End the requests that are due, also those that start in the freed slots."""
        ends, requests = self.ends, self.requests
        while ends and ends[0][0] <= until_s:
            now_s, number, name = heappop(ends)
            _, _, service_s, cost, _ = requests[number]
            self._start(self.gate.settle(name, service_s if cost is None else cost, EPOCH + now_s), now_s)

    def _start(self, decided: Decided, now_s: float) -> None:
        for fact in decided.dispatched:
            number = self.numbers.pop(fact.id)
            self.starts_s[number] = now_s
            heappush(self.ends, (now_s + self.requests[number].service_s, number, fact.id))

    def _apply(self, change: Change) -> None:
        now = EPOCH + change.at_s
        self.gate.set_shares(change.share)
        if change.capacity_per_s is not None:
            self._start(self.gate.set_capacity(change.capacity_per_s, now), change.at_s)
        if change.workers is not None:
            self._start(self.gate.set_slots(change.workers, now), change.at_s)
