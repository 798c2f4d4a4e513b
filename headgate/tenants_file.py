"""Reads the YAML file of tenants, which `headgate serve`, `tenants apply` and `simulate --gate on` share:

    tenants:
      quiet: {weight: 2, rate_per_s: 500, burst: 2000, tier: premium, queue_max: 1000, max_tokens: 512, models: [m]}
      flood: {weight: 1}
    tiers: {shares: {premium: 0.5, standard: 0.35, background: 0.15}}     # optional: tiers at the gate
    throttling: {user: 60, app: 600}                                      # optional: FairServe's limits
    unknown_fields: drop                                                  # optional: drop them, or `refuse` the request
    expected_tokens: 512                                                  # optional: of a chat without max_tokens
    prefix_lead: 0.25                                                     # optional: prefer workers that hold a prefix
    swap_charge: 0                                                        # optional: no tenant pays for swaps of models
    adapter_load_tokens: 512                                              # optional: the price of an adapter's load
    slo_classes: {chat: {first_token_s: 20}, night: {first_token_s: 3600, deferred: true}}   # optional

dispatcher/settings/sections.py describes the fields. The simulator also needs `slots` (simulator/gates/spec.py).
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError, to_json

from dispatcher.model.tenants import Tenant
from dispatcher.operations.administration import NAME
from dispatcher.policies.throttling import ThrottleLimits
from dispatcher.settings.sections import SloClassesSection, TenantSection
from dispatcher.settings.strict import Strict
from dispatcher.settings.yaml_file import read_document
from dispatcher.shard.settings import TierFloors


class TenantsFile(Strict):
    """The part of the file that both readers use. Each reader adds the keys that it needs."""

    tenants: dict[str, TenantSection]
    tiers: TierFloors | None = None
    throttling: ThrottleLimits | None = None
    unknown_fields: Literal["refuse", "drop"] | None = None
    """What `headgate serve` does with unknown fields of requests. The simulator ignores it."""
    expected_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """The output tokens that the gate of `headgate serve` expects of a chat without max_tokens. The simulator ignores
    it."""
    prefix_lead: Annotated[float, Field(ge=0, le=1)] | None = None
    """A worker of `headgate serve` may be fuller by this part of its slots, and still gets a call because it had the
    beginning of its prompt last (settings/config.py). The simulator ignores it."""
    swap_charge: Annotated[float, Field(ge=0, le=1)] | None = None
    """The part of a swap that the tenants that need it pay (shard/settings.py)."""
    adapter_load_tokens: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Input tokens that the load of a LoRA adapter is charged as, at the gate of `headgate serve` and in its engine.
    The simulator ignores it."""
    slo_classes: SloClassesSection | None = None
    """How soon first tokens are due, in place of the classes of a fleet's file. The simulator of one engine ignores
    it."""

    @model_validator(mode="after")
    def _has_their_classes(self, info: ValidationInfo) -> TenantsFile:
        known = tuple(self.slo_classes.root) if self.slo_classes else (info.context or {}).get(_CLASSES, ())
        for name, tenant in self.tenants.items():
            if tenant.slo_class is not None and tenant.slo_class not in known:
                raise PydanticCustomError(
                    "slo_class",
                    "tenant {tenant} has the SLO class {slo_class}, which slo_classes lacks; there are: {known}",
                    {"tenant": name, "slo_class": tenant.slo_class, "known": ", ".join(known) or "none"},
                )
        return self


_CLASSES = "classes"
"""The key of the classes that tenants may have without `slo_classes`."""

File = TypeVar("File", bound=TenantsFile)


def read_tenants_file(path: Path, model: type[File], *, flat: bool = False, classes: Collection[str] = ()) -> File:
    """Read and validate the file. `flat`: its tenants may also stand beside the other keys, without `tenants:`.
    `classes`: names of SLO classes that are configured elsewhere, for a file without classes of its own.

    Raises ConfigurationError, which names the place in the file.
    """
    document = read_document(path)
    flat = flat and isinstance(document.value, dict) and "tenants" not in document.value
    value = _with_tenants_key(document.value, model) if flat else document.value
    drop = ("tenants",) if flat else ()
    return document.parse_as(model, _without_nulls(value), context={_CLASSES: tuple(classes)}, drop=drop)


def _with_tenants_key(value: dict[str, Any], model: type[TenantsFile]) -> dict[str, Any]:
    """Put the keys that the model does not know under `tenants`."""
    settings = {key: value[key] for key in value if key in model.model_fields}
    return {**settings, "tenants": {key: value[key] for key in value if key not in settings}}


def _without_nulls(value: Any) -> Any:
    """Replace an empty entry (`flood:`, or `tenants:` itself) by {}."""
    if not isinstance(value, dict) or "tenants" not in value:
        return value
    tenants = {} if value["tenants"] is None else value["tenants"]
    if isinstance(tenants, dict):
        tenants = {name: {} if entry is None else entry for name, entry in tenants.items()}
    return {**value, "tenants": tenants}


_TenantName = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]


class ServedTenants(TenantsFile):
    tenants: Annotated[dict[_TenantName, TenantSection], Field(min_length=1)]
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
        plain = {
            "HEADGATE_UNKNOWN_FIELDS": self.unknown_fields,
            "HEADGATE_EXPECTED_TOKENS": self.expected_tokens,
            "HEADGATE_PREFIX_LEAD": self.prefix_lead,
            "HEADGATE_SWAP_CHARGE": self.swap_charge,
            "HEADGATE_ADAPTER_LOAD_TOKENS": self.adapter_load_tokens,
        }
        return {name: str(value) for name, value in plain.items() if value is not None} | {
            name: to_json(section).decode() for name, section in sections.items() if section is not None
        }


def read_tenants(path: Path, *, classes: Collection[str] = ()) -> ServedTenants:
    """Read the file. `classes`: as in read_tenants_file. Raises ConfigurationError, which names the place in the
    file."""
    return read_tenants_file(path, ServedTenants, classes=classes)
