"""The interface of the gate's orders, their decisions, and their registry.

A gate is pure and keeps its whole state in memory: its caller reports each change with its time, and gets a frozen
decision. A gate knows slots, not workers, and costs, not requests:

    arrive ──▶ Queued ──(a slot is freed)──▶ Dispatched ──▶ settle: the true cost is known, the slot is free
       │          └── cancel: gone before its turn             ▲
       └──────────────────(at once)────────────────────────────┘

Only `arrive`, `settle`, `cancel` and `set_slots` change free slots and waiting invocations, so the caller needs no
timer: each call returns what it dispatched.

Units: cost in service units (service.py), `now` in seconds on any clock. A `now` before one already seen counts as
that one: clocks run backward. Bad arguments raise ValueError: an id that is held already, a cost or a number of slots
that is negative or not finite, a time that is not a number.

To add an order: one class in a file of its own, one entry in ORDERS, one import in registry.py.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple, Protocol

from dispatcher.policies.clocks import Charge, Share


# Decisions are named tuples, not frozen dataclasses: as immutable, and made in a third of the time, once a decision.
class Dispatched(NamedTuple):
    """An invocation that got a slot. The gate keeps it, with its `charge`, until `settle`.

    `cost`: service units. `in_profile`: the guarantee covered it. `rate_per_s` (the effective guaranteed rate) and
    `weight` are those at the dispatch. Orders without guarantees leave the last three at their defaults.
    """

    tenant: str
    invocation_id: str
    cost: float
    in_profile: bool = False
    rate_per_s: float = 0.0
    weight: float = 1.0

    @property
    def charge(self) -> Charge:
        return Charge(self.cost, self.in_profile, self.rate_per_s, self.weight)


class Queued(NamedTuple):
    """An invocation that waits. `position` counts from 1 in its tenant's queue, or in the order's only queue."""

    tenant: str
    invocation_id: str
    position: int


Decision = Dispatched | Queued


class Gate(Protocol):
    """An order over invocations that compete for slots."""

    @property
    def slots(self) -> int: ...

    @property
    def running(self) -> int:
        """Invocations dispatched and not settled; above `slots` only after these were reduced."""
        ...

    @property
    def waiting(self) -> int: ...

    @property
    def reserved(self) -> float:
        """Sum of the estimates of all that run, in service units; never negative. O(running)."""
        ...

    @property
    def settled(self) -> float:
        """Sum of all true costs, in service units."""
        ...

    def waiting_of(self, tenant: str) -> int: ...

    def arrive(self, tenant: str, invocation_id: str, cost: float, now: float) -> Decision:
        """Add an invocation with this expected cost: dispatch it at once, or queue it. Raises ValueError."""
        ...

    def settle(self, invocation_id: str, true_cost: float, now: float) -> Dispatched | None:
        """End an invocation: its true cost replaces the estimate, and its slot goes to the next one.

        Return the dispatch into the slot; None if none waits or the slots were reduced. Raises ValueError.
        """
        ...

    def cancel(self, invocation_id: str, now: float) -> bool:
        """Remove a waiting invocation. False if it does not wait: it was dispatched, or is unknown."""
        ...

    def set_slots(self, slots: int, now: float) -> tuple[Dispatched, ...]:
        """Set the number of slots, and return the dispatches into new ones. Running invocations are never stopped."""
        ...

    def set_share(self, tenant: str, share: Share, now: float) -> None:
        """Set the tenant's share from now on. A tenant has the default Share until then."""
        ...

    def set_capacity(self, capacity_per_s: float | None, now: float) -> None:
        """Set the measured capacity in service units a second, against overbooking; None if it is unknown."""
        ...


class GateMaker(Protocol):
    def __call__(self, slots: int, *, lead_max: float) -> Gate: ...


ORDERS: dict[str, GateMaker] = {}
"""By name; complete once registry.py is imported. Names: bwfq (default), ratio, ratio+wake, virtual-clock,
virtual-clock+cap, sfq, fcfs."""

DEFAULT_ORDER = "bwfq"


def registered(name: str) -> Callable[[GateMaker], GateMaker]:
    """Enter an order into ORDERS under `name`. Raises ValueError for a name that is taken."""

    def enter(maker: GateMaker) -> GateMaker:
        if name in ORDERS:
            raise ValueError(f"the order {name!r} is registered already")
        ORDERS[name] = maker
        return maker

    return enter


def checked_cost(cost: float, what: str) -> float:
    if not 0 <= cost < inf:
        raise ValueError(f"{what} must be zero or a positive number, not {cost!r}")
    return cost


def checked_slots(slots: int) -> int:
    if not 0 <= slots < inf or slots != int(slots):
        raise ValueError(f"slots must be zero or a positive whole number, not {slots!r}")
    return slots


def later(last: float, now: float) -> float:
    """Return `now`, but never less than `last`. Raises ValueError unless `now` is finite."""
    if not -inf < now < inf:
        raise ValueError(f"now must be a finite number of seconds, not {now!r}")
    return max(last, now)


def not_running(invocation_id: str) -> ValueError:
    return ValueError(f"invocation {invocation_id!r} is not running: unknown, waiting, or settled before")


def held_already(invocation_id: str) -> ValueError:
    return ValueError(f"invocation {invocation_id!r} is here already")
