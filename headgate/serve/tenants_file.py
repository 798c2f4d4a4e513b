"""The tenants of `headgate serve --tenants FILE` (headgate/tenants_file.py), and the settings of their gate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic_core import to_json

from dispatcher.model.tenants import Tenant
from dispatcher.operations.administration import NAME
from dispatcher.settings.sections import TenantSection
from headgate.tenants_file import TenantsFile, read_tenants_file

TenantName = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]


class ServedTenants(TenantsFile):
    tenants: Annotated[dict[TenantName, TenantSection], Field(min_length=1)]
    slots: Any = None
    deadline_s: Any = None
    """`slots` and `deadline_s` are for the simulator's gate. A server ignores them: its workers have their own
    slots."""

    def wanted(self) -> list[Tenant]:
        return [section.tenant(name) for name, section in self.tenants.items()]

    def environment(self) -> dict[str, str]:
        """Return the variables of the gate's configuration that the file sets."""
        sections = {
            "HEADGATE_TIERS": self.tiers,
            "HEADGATE_THROTTLING": self.throttling,
            "HEADGATE_SLO_CLASSES": self.slo_classes,
        }
        plain = {"HEADGATE_UNKNOWN_FIELDS": self.unknown_fields, "HEADGATE_EXPECTED_TOKENS": self.expected_tokens}
        return {name: str(value) for name, value in plain.items() if value is not None} | {
            name: to_json(section).decode() for name, section in sections.items() if section is not None
        }


def read_tenants(path: Path) -> ServedTenants:
    """Read the file. Raises ConfigurationError, which names the place in the file."""
    return read_tenants_file(path, ServedTenants)
