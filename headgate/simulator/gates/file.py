"""Reads the gate of a simulation from a YAML file (`headgate simulate --gate on --tenants FILE.yaml`).

The file is that of `headgate serve` (headgate/tenants_file.py), with two more keys:

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

from pathlib import Path
from typing import Annotated

from pydantic import Field

from dispatcher.settings.sections import TenantSection
from headgate.simulator.gates.spec import DEADLINE_S, SLOTS_MAX, GateSpec, GateTenant
from headgate.tenants_file import TenantsFile, read_tenants_file

SECONDS_MAX = 1e9


class GateFile(TenantsFile):
    slots: Annotated[int, Field(ge=1, le=SLOTS_MAX)]
    deadline_s: Annotated[float, Field(gt=0, le=SECONDS_MAX)] = DEADLINE_S


def read_gate(path: Path, *, order: str) -> GateSpec:
    """Read a gate. Raises ConfigurationError, which names the place in the file; ValueError for an unknown order."""
    file = read_tenants_file(path, GateFile, flat=True)
    return GateSpec(
        file.slots,
        order,
        {name: _tenant(name, section) for name, section in file.tenants.items()},
        file.deadline_s,
        tiers=file.tiers,
        throttling=file.throttling,
    )


def _tenant(name: str, section: TenantSection) -> GateTenant:
    tenant = section.tenant(name)
    return GateTenant(tenant.share, None if section.tier is None else tenant.tier, tenant.queue_items_max)
