"""The configuration of a simulated gate: its order, its slots, and each tenant's share.

`headgate simulate --gate on --tenants FILE.yaml` reads it from a file. The file
is that of `headgate serve` (headgate/tenants_file.py), with two more keys:

    slots: 16
    deadline_s: 300        # optional: longest wait from arrival to dispatch; then the request is rejected
    tenants:
      quiet: {weight: 2, rate_per_s: 500, burst: 2000, tier: premium, queue_max: 1000}
      flood: {weight: 1}

`tenants:` may be left out; its entries then stand beside `slots`. A tenant that is not named has weight 1 and no
guarantee. Rates and bursts are in service units (in requests for the order `ratio`, which has no costs). A simulation
has one model and no key, so `models` and `max_tokens` have no effect.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from dispatcher.model.shards import SHARDS_MAX
from dispatcher.model.tenants import Tenant
from dispatcher.operations.pools import DEADLINE_S
from dispatcher.policies.clocks import Share
from dispatcher.policies.orders.registry import DEFAULT_ORDER, ORDERS
from dispatcher.policies.planning.slo import SloClasses
from dispatcher.policies.service import ServiceFunction
from dispatcher.policies.throttling import ThrottleLimits
from dispatcher.policies.tiers import Tier
from dispatcher.settings.sections import TenantSection
from dispatcher.shard.settings import SWAP_CHARGE, ShardSettings, TierFloors
from headgate.tenants_file import TenantsFile, read_tenants_file

QUEUE_MAX = Tenant("").queue_items_max
_SLOTS_MAX = 100_000
REPORT_S = 1.0
"""Between two reports of a worker: its capacity, and the use of its KV cache."""


@dataclass(frozen=True, slots=True)
class GateTenant:
    """`tier` None: not given; the gate then takes standard. `queue_max`: most of its requests that may wait.
    `slo_class`: before a fleet, of its requests that name none; empty: the fleet's default."""

    share: Share = field(default_factory=Share)
    tier: Tier | None = None
    queue_max: int = QUEUE_MAX
    slo_class: str = ""


_UNNAMED_TENANT = GateTenant()


@dataclass(frozen=True, slots=True)
class GateSpec:
    """`deadline_s`: the longest wait from arrival to dispatch. `tiers`, `throttling`: as in ShardSettings; None leaves
    them out. `shards`: of the pool; each has some of the tenants, and as many of the slots as its calls need.
    `swap_charge`: of a fleet, as in ShardSettings. `announces_waits`: as there; False makes a run cheaper that reads no
    announced wait and has no deadlines. `classes`: in place of the fleet's; None: the fleet has them.
    Raises ValueError for an unknown order or a number of slots or shards out of range."""

    slots: int
    order: str = DEFAULT_ORDER
    tenants: Mapping[str, GateTenant] = field(default_factory=dict)
    deadline_s: float = DEADLINE_S
    tiers: TierFloors | None = None
    throttling: ThrottleLimits | None = None
    shards: int = 1
    swap_charge: float = SWAP_CHARGE
    announces_waits: bool = True
    classes: SloClasses | None = None

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"unknown order {self.order!r}; there are: {', '.join(sorted(ORDERS))}")
        if not 1 <= self.slots <= _SLOTS_MAX:
            raise ValueError(f"slots must be between 1 and {_SLOTS_MAX}, not {self.slots!r}")
        if not 1 <= self.shards <= SHARDS_MAX:
            raise ValueError(f"shards must be between 1 and {SHARDS_MAX}, not {self.shards!r}")

    @property
    def uses_reports(self) -> bool:
        """Whether a decision depends on what the worker reports while it runs."""
        return (
            self.shards > 1
            or self.throttling is not None
            or any(tenant.share.rate_per_s for tenant in self.tenants.values())
        )

    def shard_settings(self, service: ServiceFunction) -> ShardSettings:
        return ShardSettings(
            order=self.order, service=service, tiers=self.tiers, throttling=self.throttling, is_sharded=self.shards > 1,
            swap_charge=self.swap_charge, announces_waits=self.announces_waits,
        )  # fmt: skip

    def tenant(self, name: str) -> GateTenant:
        return self.tenants.get(name, _UNNAMED_TENANT)

    def completed(self, weights: Mapping[str, float], tiers: Mapping[str, str]) -> GateSpec:
        """Return a copy with these weights and tiers, also for tenants that it does not name."""
        changed = dict(self.tenants)
        for name in {**weights, **tiers}:
            old = self.tenant(name)
            share = replace(old.share, weight=weights.get(name, old.share.weight))
            changed[name] = replace(old, share=share, tier=Tier(tiers[name]) if name in tiers else old.tier)
        return replace(self, tenants=changed)


_SECONDS_MAX = 1e9


class GateFile(TenantsFile):
    slots: Annotated[int, Field(ge=1, le=_SLOTS_MAX)]
    deadline_s: Annotated[float, Field(gt=0, le=_SECONDS_MAX)] = DEADLINE_S


class FleetGateFile(GateFile):
    """The file of a gate before a fleet. There, the workers have the slots."""

    slots: Annotated[int, Field(ge=1, le=_SLOTS_MAX)] = 1


def read_gate(
    path: Path, *, order: str, shards: int = 1, kind: type[GateFile] = GateFile, classes: Collection[str] = ()
) -> GateSpec:
    """Read a gate. `classes`: of the fleet behind it.

    Raises ConfigurationError, which names the place in the file; ValueError for an unknown order.
    """
    file = read_tenants_file(path, kind, flat=True, classes=classes)
    return GateSpec(
        file.slots,
        order,
        {name: _tenant(name, section) for name, section in file.tenants.items()},
        file.deadline_s,
        tiers=file.tiers,
        throttling=file.throttling,
        shards=shards,
        swap_charge=SWAP_CHARGE if file.swap_charge is None else file.swap_charge,
        classes=None if file.slo_classes is None else file.slo_classes.classes(),
    )


def _tenant(name: str, section: TenantSection) -> GateTenant:
    tenant = section.tenant(name)
    tier = None if section.tier is None else tenant.tier
    return GateTenant(tenant.share, tier, tenant.queue_items_max, tenant.slo_class)
