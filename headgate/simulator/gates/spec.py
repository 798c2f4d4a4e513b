"""The configuration of a simulated gate: its order, its slots, and each tenant's share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dispatcher.model.tenants import Tenant
from dispatcher.old_operations.context import GateSettings
from dispatcher.policies.clocks import Share
from dispatcher.policies.old_orders.registry import DEFAULT_ORDER, ORDERS
from dispatcher.policies.tiers import Tier

STORE_ORDERS = frozenset({"bwfq", "fcfs"})
"""The orders that the production operations and their stores implement. The others exist only as pure gates."""
DEADLINE_S = GateSettings().deadline_s
QUEUE_MAX = Tenant("", "").queue_items_max
SLOTS_MAX = 100_000
HEARTBEAT_S = 2.0
"""Between two heartbeats of a worker, which report its capacity (gpu_worker/service/agent.py)."""
SWEEP_S = 60.0
"""Between two sweeps of the gate, which scale overbooked guarantees (infra/functions.py)."""


@dataclass(frozen=True, slots=True)
class GateTenant:
    """`tier` None: not given; the gate then takes standard. `queue_max`: most of its requests that may wait."""

    share: Share = field(default_factory=Share)
    tier: Tier | None = None
    queue_max: int = QUEUE_MAX


UNNAMED_TENANT = GateTenant()


@dataclass(frozen=True, slots=True)
class GateSpec:
    """`deadline_s`: the longest wait from arrival to dispatch. `pure`: run the order without the operations, even if
    the operations implement it. Raises ValueError for an unknown order or a number of slots out of range."""

    slots: int
    order: str = DEFAULT_ORDER
    tenants: Mapping[str, GateTenant] = field(default_factory=dict)
    deadline_s: float = DEADLINE_S
    pure: bool = False

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"unknown order {self.order!r}; there are: {', '.join(sorted(ORDERS))}")
        if not 1 <= self.slots <= SLOTS_MAX:
            raise ValueError(f"slots must be between 1 and {SLOTS_MAX}, not {self.slots!r}")

    @property
    def through_operations(self) -> bool:
        return self.order in STORE_ORDERS and not self.pure

    def tenant(self, name: str) -> GateTenant:
        return self.tenants.get(name, UNNAMED_TENANT)

    def weighted(self, weights: Mapping[str, float]) -> GateSpec:
        """Return a copy with these weights, also for tenants that it does not name."""
        changed = dict(self.tenants)
        for name, weight in weights.items():
            old = self.tenant(name)
            changed[name] = replace(old, share=replace(old.share, weight=weight))
        return replace(self, tenants=changed)
