"""The interface of the gate's orders, and their registry.

An order decides three things: when an arriving tenant's clocks are lifted, which of the waiting queues is due first,
and what a dispatch or a settlement does to the clocks. It returns new values and changes none: the shard writes them
into its log as facts, and assigns them when it folds the facts. Only an Index keeps state, the present positions of the
waiting queues. The shard calls it after every change of a queue or of its tenant's clocks.

Units: cost in service units (service.py), `now` in Unix seconds; it never falls.

To add an order: one class in a file of its own, registered, and one import in registry.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dispatcher.policies.orders.queues import Call, Clocks, Tenant, TenantQueue
from dispatcher.policies.orders.slack_index import Slack

Charge = tuple[bool, float, Clocks, float]
"""The effects of a dispatch: whether the guarantee covers it, the effective rate, the tenant's clocks and V after it. A
plain tuple, because a named one takes several times as long to make."""


class Index(Protocol):
    """The waiting queues of one model (and tier), found by the order's key. A queue leaves by TenantQueue.move()."""

    def place(self, queue: TenantQueue, now: float) -> None:
        """Add the queue, or update it after a change of its head or of its tenant's clocks. It must not be empty."""
        ...

    def due(self, now: float, virtual_time: float) -> tuple[TenantQueue | None, float]:
        """Return the queue that is due first, or None if nothing waits, and what `lowest_vft` returns.

        Changes nothing but the index itself.
        """
        ...

    def direct(self, now: float, virtual_time: float) -> TenantQueue | None:
        """Return the queue that is due first among the queues of calls that are not deferred, or None."""
        ...

    def first_in_profile(self, now: float) -> TenantQueue | None:
        """Return the first queue with a guarantee that covers a dispatch now, or None."""
        ...

    def lowest_vft(self) -> float:
        """Return the lowest vft of the tenants with calls that are not deferred; infinity if there are none or the
        order has no such clock."""
        ...


class Order(Protocol):
    """An order. It keeps no state but its settings."""

    name: str
    new_clocks: Clocks
    """The clocks of a new tenant."""
    is_conserving: bool
    """True (work conserving): no slot stays free while a call waits that may use it. False: a call is dispatched only
    at its arrival (`goes_at_once`), or when another call ends or is returned."""

    slack: Slack | None
    """How due times matter; None: they do not, and no call is deferred."""

    def make_index(self) -> Index: ...

    def join(self, tenant: Tenant, now: float, virtual_time: float, *, deferred: bool = False) -> tuple[Clocks, float]:
        """Return the tenant's clocks after a call's arrival, and the call's priority in its queue, lowest first.

        `deferred`: the call is of a deferred SLO class.
        """
        ...

    def goes_at_once(self, tenant: Tenant, now: float) -> bool:
        """Return whether an arriving call takes a free slot before all waiting calls. Unused by conserving orders."""
        ...

    def charge(
        self,
        tenant: Tenant,
        cost: float,
        now: float,
        virtual_time: float,
        scale: float,
        lowest_vft: float,
        as_surplus: bool = False,
    ) -> Charge:
        """Return the charge of a dispatch.

        `scale`: the factor on guaranteed rates. `lowest_vft`: the lowest of the tenants that wait for the call's model.
        `as_surplus`: the call is deferred and has slack, so that no guarantee covers it.
        """
        ...

    def settle(self, tenant: Tenant, call: Call, served: float, swap_service: float = 0.0) -> Clocks:
        """Return the tenant's clocks after `served` has replaced the estimate of a running call. 0 is a refund.

        `swap_service`: what the call pays for swaps of models, in addition and in the surplus only: no guarantee covers
        it, and it uses none up (shard/swapping.py)."""
        ...

    def ended_idle(self, clocks: Clocks, virtual_time: float) -> float:
        """Return V after a settlement that leaves a slot free while no call waits. `clocks`: the tenant's, after it."""
        ...

    def is_forgettable(self, tenant: Tenant, now: float, virtual_time: float) -> bool:
        """Return whether a tenant with nothing waiting or running behaves like a new one."""
        ...


class OrderMaker(Protocol):
    def __call__(self, *, lead_max: float, slack: Slack | None) -> Order: ...


ORDERS: dict[str, OrderMaker] = {}
"""Maps the name of an order to its maker. It is complete once registry.py is imported. Names: bwfq (default), ratio,
ratio+wake, virtual-clock, virtual-clock+cap, sfq, fcfs."""

DEFAULT_ORDER = "bwfq"


def registered(name: str) -> Callable[[OrderMaker], OrderMaker]:
    """Enter an order into ORDERS under `name`. Raises ValueError for a name that is taken."""

    def enter(maker: OrderMaker) -> OrderMaker:
        if name in ORDERS:
            raise ValueError(f"the order {name!r} is registered already")
        ORDERS[name] = maker
        return maker

    return enter
