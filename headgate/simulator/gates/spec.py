"""The configuration of a simulated gate: its order, its slots, and each tenant's share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dispatcher.model.tenants import Tenant
from dispatcher.operations.pools import PoolSettings
from dispatcher.policies.clocks import Share
from dispatcher.policies.orders.registry import DEFAULT_ORDER, ORDERS
from dispatcher.policies.service import ServiceFunction
from dispatcher.policies.throttling import ThrottleLimits
from dispatcher.policies.tiers import Tier
from dispatcher.shard.settings import ShardSettings, TierFloors

DEADLINE_S = PoolSettings().deadline_s
QUEUE_MAX = Tenant("").queue_items_max
SLOTS_MAX = 100_000
REPORT_S = 1.0
"""Between two reports of a worker: its capacity, and the use of its KV cache."""


@dataclass(frozen=True, slots=True)
class GateTenant:
    """`tier` None: not given; the gate then takes standard. `queue_max`: most of its requests that may wait."""

    share: Share = field(default_factory=Share)
    tier: Tier | None = None
    queue_max: int = QUEUE_MAX


UNNAMED_TENANT = GateTenant()


@dataclass(frozen=True, slots=True)
class GateSpec:
    """`deadline_s`: the longest wait from arrival to dispatch. `tiers`, `throttling`: as in ShardSettings; None leaves
    them out. Raises ValueError for an unknown order or a number of slots out of range."""

    slots: int
    order: str = DEFAULT_ORDER
    tenants: Mapping[str, GateTenant] = field(default_factory=dict)
    deadline_s: float = DEADLINE_S
    tiers: TierFloors | None = None
    throttling: ThrottleLimits | None = None

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"unknown order {self.order!r}; there are: {', '.join(sorted(ORDERS))}")
        if not 1 <= self.slots <= SLOTS_MAX:
            raise ValueError(f"slots must be between 1 and {SLOTS_MAX}, not {self.slots!r}")

    @property
    def uses_reports(self) -> bool:
        """Whether a decision depends on what the worker reports while it runs."""
        return self.throttling is not None or any(tenant.share.rate_per_s for tenant in self.tenants.values())

    def shard_settings(self, service: ServiceFunction) -> ShardSettings:
        return ShardSettings(order=self.order, service=service, tiers=self.tiers, throttling=self.throttling)

    def tenant(self, name: str) -> GateTenant:
        return self.tenants.get(name, UNNAMED_TENANT)

    def completed(self, weights: Mapping[str, float], tiers: Mapping[str, str]) -> GateSpec:
        """Return a copy with these weights and tiers, also for tenants that it does not name."""
        changed = dict(self.tenants)
        for name in {**weights, **tiers}:
            old = self.tenant(name)
            share = replace(old.share, weight=weights.get(name, old.share.weight))
            changed[name] = replace(old, share=share, tier=Tier(tiers[name]) if name in tiers else old.tier)
        return replace(self, tenants=changed)
