"""Plays a sequence of operations on a gate, so that several gates can get exactly the same calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Protocol

from hypothesis import strategies as st

from dispatcher.model.commands import parse_call_id
from dispatcher.model.facts import Dispatched
from dispatcher.policies.clocks import Share
from dispatcher.shard.alone import Decided

TENANTS = ("a", "b", "c", "d", "e")
# Powers of two and small whole numbers: sums of them are exact in any order.
COSTS = (0.0, 0.5, 1.0, 4.0, 64.0)
CAPACITIES_PER_S = (0.0, 1.0, 2.0, 4.0, 16.0)
SHARES = (
    Share(),
    Share(weight=4.0),
    Share(rate_per_s=1.0),
    Share(rate_per_s=1.0, burst=8.0),
    Share(weight=0.5, rate_per_s=4.0, burst=2.0),
)

RARE = ("cancel", "set_slots", "set_share", "set_capacity")
KINDS = ("arrive", "settle", *RARE)


@dataclass(frozen=True)
class Op:
    """`pick`: the index, modulo their number, of a running, waiting or known one; `value`: that of a cost, share …"""

    kind: str
    pick: int
    value: int
    dt: float


def story(seed: int, length: int, share_change: bool) -> list[Op]:
    """Return `length` operations after each tenant got a share. Each seed draws the frequency of each kind anew."""
    random = Random(seed)
    weights = [8 * random.random() + 1, 8 * random.random() + 1, *(random.random() for _ in RARE)]
    if not share_change:
        weights[KINDS.index("set_share")] = 0
    steps_s = random.choice(((0.0, 0.25), (0.0, 0.25, 1.0), (0.0, 1.0, 16.0)))
    given = [Op("set_share", number, random.randrange(len(SHARES)), 0.0) for number in range(len(TENANTS))]
    kinds = random.choices(KINDS, weights, k=length)
    return given + [Op(kind, random.randrange(60), random.randrange(5), random.choice(steps_s)) for kind in kinds]


def stories(*, share_change: bool = True) -> st.SearchStrategy[list[Op]]:
    """A failing one shrinks to its shortest failing beginning."""
    return st.builds(story, st.integers(0, 2**32), st.integers(0, 250), st.just(share_change))


class Gate(Protocol):
    """What a CostGate and the reference have in common."""

    def next_name(self) -> str: ...

    def submit(self, tenant: str, cost: float, now: float) -> Decided: ...

    def settle(self, name: str, cost: float, now: float) -> Decided: ...

    def cancel(self, name: str, now: float) -> Decided: ...

    def set_slots(self, slots: int, now: float) -> Decided: ...

    def set_capacity(self, capacity_per_s: float, now: float) -> Decided: ...

    def set_shares(self, shares: Mapping[str, Share]) -> None: ...


class Driver:
    """Tracks waiting and running calls from the gate's dispatches alone."""

    def __init__(self, gate: Gate, start_s: float = 1000.0) -> None:
        self.gate = gate
        self.now = start_s
        self.tenant: dict[str, str] = {}
        self.cost: dict[str, float] = {}
        self.waiting: dict[str, str] = {}
        self.running: set[str] = set()
        self.dispatches: list[Dispatched] = []
        self.settled = 0.0

    def play(self, op: Op) -> None:
        self.now += op.dt
        getattr(self, op.kind)(op)

    def arrive(self, op: Op) -> None:
        tenant, name = TENANTS[op.pick % len(TENANTS)], self.gate.next_name()
        self.tenant[name] = self.waiting[name] = tenant
        self.cost[name] = COSTS[op.value]
        self._follow(self.gate.submit(tenant, COSTS[op.value], self.now))

    def settle(self, op: Op) -> None:
        if self.running:
            name = _picked(self.running, op)
            self.running.remove(name)
            self.settled += COSTS[op.value]
            self._follow(self.gate.settle(name, COSTS[op.value], self.now))

    def cancel(self, op: Op) -> None:
        if self.waiting:
            name = _picked(self.waiting, op)
            del self.waiting[name]
            self._follow(self.gate.cancel(name, self.now))

    def set_slots(self, op: Op) -> None:
        self._follow(self.gate.set_slots(op.value, self.now))

    def set_share(self, op: Op) -> None:
        self.gate.set_shares({TENANTS[op.pick % len(TENANTS)]: SHARES[op.value]})

    def set_capacity(self, op: Op) -> None:
        self._follow(self.gate.set_capacity(CAPACITIES_PER_S[op.value], self.now))

    def _follow(self, decided: Decided) -> None:
        for dispatched in decided.dispatched:
            del self.waiting[dispatched.id]
            assert dispatched.id not in self.running
            self.running.add(dispatched.id)
            self.dispatches.append(dispatched)


def _picked(names: Mapping[str, str] | set[str], op: Op) -> str:
    return sorted(names, key=parse_call_id)[op.pick % len(names)]
