"""Reads tenants, and settings of their gate, from a YAML file (`headgate serve --tenants FILE`):

    tenants:
      quiet: {weight: 2, rate_per_s: 500, burst: 2000, tier: premium, queue_max: 1000, max_tokens: 512, models: [m]}
      flood: {weight: 1}
    tiers: {shares: {premium: 0.5, standard: 0.35, background: 0.15}}     # optional: tiers at the gate
    throttling: {user: 60, app: 600}                                      # optional: FairServe's limits

The simulator reads the same file (`headgate simulate --gate on --tenants FILE`); it also needs `slots`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from dispatcher.model.tenants import Tenant
from dispatcher.operations.tenants import NAME
from dispatcher.sections import Section, TenantSection, ThrottlingSection, TiersSection
from headgate.workloads.described.document import read_document

TenantName = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]


class TenantsFile(Section):
    """The whole file."""

    tenants: Annotated[dict[TenantName, TenantSection], Field(min_length=1)]
    tiers: TiersSection | None = None
    throttling: ThrottlingSection | None = None
    slots: Any = None
    deadline_s: Any = None
    """`slots` and `deadline_s` belong to the simulator's gate: a server's workers have their own slots."""

    def wanted(self) -> list[Tenant]:
        return [section.tenant(name) for name, section in self.tenants.items()]

    def environment(self) -> dict[str, str]:
        """Return the variables of the gate's configuration that the file sets."""
        sections = {"HEADGATE_TIERS": self.tiers, "HEADGATE_THROTTLING": self.throttling}
        return {name: section.model_dump_json() for name, section in sections.items() if section is not None}


def read_tenants(path: Path) -> TenantsFile:
    """Read the file. Raises ConfigurationError, which names the place in the file; OSError."""
    document = read_document(path)
    try:
        return TenantsFile.model_validate(_without_nulls(document.value))
    except ValidationError as error:
        finding = error.errors(include_url=False, include_input=False)[0]
        raise document.wrong(finding["loc"], finding["msg"].replace("Input should", "should", 1)) from None


def _without_nulls(value: Any) -> Any:
    """Replace an empty entry (`flood:`) by {}."""
    if not isinstance(value, dict) or not isinstance(value.get("tenants"), dict):
        return value
    return {**value, "tenants": {name: entry or {} for name, entry in value["tenants"].items()}}
