"""The shard in memory with calls named by the test: `gate.arrive("a", "a1", cost, now)`."""

from __future__ import annotations

from dispatcher.model.commands import Outcome
from dispatcher.model.facts import Dispatched
from dispatcher.policies.clocks import LEAD_MAX, Share
from dispatcher.shard.alone import CostGate, Decided
from tests.support.world.reference import Clocks

T0 = 1_000.0


class LabelledGate:
    """Every method returns the labels of the calls that it dispatched. `charges`: the facts of their dispatches."""

    def __init__(self, order: str = "bwfq", slots: int = 1, *, lead_max: float = LEAD_MAX) -> None:
        self.gate = CostGate(order, slots, lead_max=lead_max, now=T0)
        self.state = self.gate.shard.state
        self.charges: dict[str, Dispatched] = {}
        self.outcome: Outcome | None = None
        """Of the last command."""
        self._names: dict[str, str] = {}
        self._labels: dict[str, str] = {}

    def arrive(self, tenant: str, label: str, cost: float = 1.0, now: float = T0) -> list[str]:
        name = self.gate.next_name()
        self._names[label], self._labels[name] = name, label
        return self._follow(self.gate.submit(tenant, cost, now))

    def settle(self, label: str, cost: float = 1.0, now: float = T0) -> list[str]:
        return self._follow(self.gate.settle(self._names[label], cost, now))

    def cancel(self, label: str, now: float = T0) -> list[str]:
        return self._follow(self.gate.cancel(self._names[label], now))

    def set_slots(self, slots: int, now: float = T0) -> list[str]:
        return self._follow(self.gate.set_slots(slots, now))

    def set_capacity(self, capacity_per_s: float, now: float = T0) -> list[str]:
        return self._follow(self.gate.set_capacity(capacity_per_s, now))

    def set_shares(self, **shares: Share) -> None:
        """They count from each tenant's next call on."""
        self.gate.set_shares(shares)

    def drain(self, label: str, cost: float = 0.0, now: float = T0) -> list[str]:
        """End the call, then each that this dispatches, at a cost of 1. Return them in the order of dispatch."""
        order = self.settle(label, cost, now)
        for dispatched in order:
            order += self.settle(dispatched, 1.0, now)
        return order

    def clocks_of(self, tenant: str) -> Clocks:
        tat, vft = self.state.tenants[tenant].clocks
        return Clocks(tat, vft)

    def credits_of(self, tenant: str) -> tuple[float, float]:
        """Return (earned, spent) under the orders `ratio`, as of the last update."""
        earned, spent, _ = self.state.tenants[tenant].clocks
        return earned, spent

    def waiting_of(self, tenant: str) -> int:
        return self.state.tenants[tenant].waiting

    @property
    def stranded(self) -> int:
        """The calls that wait while slots are free and no call runs, the end of which would dispatch them."""
        return 0 if self.gate.running or not self.gate.slots else self.gate.waiting

    def _follow(self, decided: Decided) -> list[str]:
        self.outcome = decided.outcome
        for fact in decided.dispatched:
            self.charges[self._labels[fact.id]] = fact
        return [self._labels[fact.id] for fact in decided.dispatched]


def full(slots: int = 1, **shares: Share) -> LabelledGate:
    """Make a gate with every slot taken, each by a tenant of its own: blocker-0, blocker-1, …"""
    gate = LabelledGate(slots=slots, lead_max=100.0)
    gate.set_shares(**shares)
    for number in range(slots):
        gate.arrive(f"blocker-{number}", f"blocker-{number}", 0.0)
    return gate
