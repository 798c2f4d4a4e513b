"""Plays a sequence of operations on a gate, so that several gates can get exactly the same calls."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from hypothesis import strategies as st

from dispatcher.policies.clocks import Share
from dispatcher.policies.old_orders.interface import Dispatched

TENANTS = ("a", "b", "c", "d", "e")
# Powers of two and small whole numbers: sums of them are exact in any order.
COSTS = (0.0, 0.5, 1.0, 4.0, 64.0)
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


class Driver:
    """Tracks waiting and running invocations from the gate's decisions alone; `decisions` has them in order."""

    def __init__(self, gate: Any, start_s: float = 1000.0) -> None:
        self.gate = gate
        self.now = start_s
        self.waiting: dict[str, str] = {}
        self.running: dict[str, Dispatched] = {}
        self.decisions: list[Any] = []
        self.dispatches: list[Dispatched] = []
        self.sent = 0
        self.settled = 0.0

    def play(self, op: Op) -> None:
        self.now += op.dt
        getattr(self, op.kind)(op)

    def arrive(self, op: Op) -> None:
        self.sent += 1
        tenant, invocation_id = TENANTS[op.pick % len(TENANTS)], f"i{self.sent}"
        decision = self.gate.arrive(tenant, invocation_id, COSTS[op.value], self.now)
        self.decisions.append(decision)
        if isinstance(decision, Dispatched):
            self._dispatched(decision)
        else:
            self.waiting[invocation_id] = tenant

    def settle(self, op: Op) -> None:
        if self.running:
            invocation_id = sorted(self.running)[op.pick % len(self.running)]
            del self.running[invocation_id]
            self.settled += COSTS[op.value]
            self._woken(self.gate.settle(invocation_id, COSTS[op.value], self.now))

    def cancel(self, op: Op) -> None:
        if self.waiting:
            invocation_id = sorted(self.waiting)[op.pick % len(self.waiting)]
            del self.waiting[invocation_id]
            assert self.gate.cancel(invocation_id, self.now)

    def set_slots(self, op: Op) -> None:
        for dispatched in self.gate.set_slots(op.value, self.now):
            self._woken(dispatched)

    def set_share(self, op: Op) -> None:
        self.gate.set_share(TENANTS[op.pick % len(TENANTS)], SHARES[op.value], self.now)

    def set_capacity(self, op: Op) -> None:
        self.gate.set_capacity((None, 1.0, 2.0, 4.0, 16.0)[op.value], self.now)

    def _woken(self, dispatched: Dispatched | None) -> None:
        self.decisions.append(dispatched)
        if dispatched is not None:
            del self.waiting[dispatched.invocation_id]
            self._dispatched(dispatched)

    def _dispatched(self, dispatched: Dispatched) -> None:
        assert dispatched.invocation_id not in self.running
        self.running[dispatched.invocation_id] = dispatched
        self.dispatches.append(dispatched)
