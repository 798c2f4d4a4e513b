"""The shard alone over a machine of slots, in virtual time: no log, no processes, so a wait is the order's alone.

Every tenant sends calls as a Poisson process; a call runs for a time from a uniform distribution and costs UNITS_PER_S
for each second. The gate knows the longest run of a call (as it knows max_tokens) until the call ends, and settles it
then. An arrival at a full queue changes no state, so only arrivals that find a place are played: while the queue of a
tenant is full, its next arrival is drawn when a place is free. For a Poisson process this is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from dispatcher.policies.clocks import Share
from dispatcher.policies.orders.registry import DEFAULT_ORDER
from dispatcher.shard.alone import EPOCH, CostGate, Decided

UNITS_PER_S = 40.0
"""Service units that a slot delivers in a second: 20 output tokens."""

UNBOUNDED = 1_000_000


@dataclass(frozen=True, slots=True)
class Sender:
    """A tenant and its calls. `queue_max`: most of them that wait. Only tenants without a bound are measured."""

    name: str
    calls_per_s: float
    share: Share
    queue_max: int = UNBOUNDED


@dataclass(slots=True)
class Waits:
    """Seconds, of the calls that arrived in the measured time."""

    by_tenant: dict[str, list[float]] = field(default_factory=dict)
    to_next_end: list[float] = field(default_factory=list)
    """From each arrival to the first end of any call. While all slots are in use, no order without preemption gives the
    arrival a slot before."""


def rate_waits(sender: Sender, run_s: tuple[float, float], seed: int, seconds: float, warmup_s: float) -> list[float]:
    """Return the waits of the same calls at a server that gives them the share's rate, one after the other."""
    random, now, free_at = Random(f"{seed} {sender.name}"), 0.0, 0.0
    waits: list[float] = []
    while True:
        now += random.expovariate(sender.calls_per_s)
        if now >= warmup_s + seconds:
            return waits
        free_at = max(now, free_at)
        if now >= warmup_s:
            waits.append(free_at - now)
        free_at += random.uniform(*run_s) * UNITS_PER_S / sender.share.rate_per_s


class SlotMachine:
    """`run_s`: shortest and longest run of a call. The calls of a tenant depend on the seed and its name alone."""

    def __init__(
        self, slots: int, senders: list[Sender], run_s: tuple[float, float], seed: int, order: str = DEFAULT_ORDER
    ) -> None:
        self._run_s, self._senders = run_s, {each.name: each for each in senders}
        self._random = {each.name: Random(f"{seed} {each.name}") for each in senders}
        self._gate = CostGate(order, slots)
        self._gate.set_capacity(slots * UNITS_PER_S, EPOCH)
        for each in senders:
            self._gate.set_tenant(each.name, each.share, waiting_max=each.queue_max)
        self._events: list[tuple[float, int, str, str]] = []
        """Time, order among equal times, call, and the tenant of an arrival (empty: an end)."""
        self._number = 0
        self._calls: dict[str, tuple[str, float, float]] = {}
        """Tenant, arrival and run of each call."""
        self._waiting = dict.fromkeys(self._senders, 0)
        self._scheduled: set[str] = set()
        """Tenants of which an arrival is among the events."""
        self._unmet: list[float] = []
        """Measured arrivals since the last end."""
        self._waits = Waits({each.name: [] for each in senders})
        self._measured_from = 0.0

    def run(self, seconds: float, warmup_s: float) -> Waits:
        self._measured_from, until = EPOCH + warmup_s, EPOCH + warmup_s + seconds
        for name in self._senders:
            self._next_arrival(name, EPOCH)
        while self._events:
            now, _, call, tenant = heappop(self._events)
            if now >= until:
                break
            if tenant:
                self._arrive(tenant, now)
            else:
                self._end(call, now)
        return self._waits

    def _next_arrival(self, tenant: str, now: float) -> None:
        sender, random = self._senders[tenant], self._random[tenant]
        if self._waiting[tenant] < sender.queue_max and tenant not in self._scheduled:
            self._scheduled.add(tenant)
            self._at(now + random.expovariate(sender.calls_per_s), "", tenant)

    def _arrive(self, tenant: str, now: float) -> None:
        self._scheduled.discard(tenant)
        name = self._gate.next_name()
        self._calls[name] = tenant, now, self._random[tenant].uniform(*self._run_s)
        self._waiting[tenant] += 1
        if self._is_measured(tenant, now):
            self._unmet.append(now)
        self._dispatch(self._gate.submit(tenant, UNITS_PER_S * self._run_s[1], now), now)
        self._next_arrival(tenant, now)

    def _end(self, call: str, now: float) -> None:
        self._waits.to_next_end.extend(now - at for at in self._unmet)
        self._unmet.clear()
        _, _, run_s = self._calls.pop(call)
        self._dispatch(self._gate.settle(call, UNITS_PER_S * run_s, now), now)

    def _dispatch(self, decided: Decided, now: float) -> None:
        for fact in decided.dispatched:
            tenant, arrived_at, run_s = self._calls[fact.id]
            self._waiting[tenant] -= 1
            self._at(now + run_s, fact.id, "")
            if self._is_measured(tenant, arrived_at):
                self._waits.by_tenant[tenant].append(now - arrived_at)
            self._next_arrival(tenant, now)

    def _is_measured(self, tenant: str, arrived_at: float) -> bool:
        return arrived_at >= self._measured_from and self._senders[tenant].queue_max == UNBOUNDED

    def _at(self, at: float, call: str, tenant: str) -> None:
        self._number += 1
        heappush(self._events, (at, self._number, call, tenant))
