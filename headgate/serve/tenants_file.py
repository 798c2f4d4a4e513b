"""Reads tenants from a YAML file (`headgate serve --tenants FILE`). The simulator's files (`--gate on`) are read too:

tenants:
  quiet: {weight: 2, rate_per_s: 500, burst: 2000, tier: premium, queue_max: 1000, max_tokens: 512, models: [m]}
  flood: {weight: 1}
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dispatcher.model.tenants import Tenant
from dispatcher.policies.clocks import Share
from dispatcher.policies.tiers import Tier
from headgate.workloads.described.document import read_document

SERVICE_MAX = 1e12
COUNT_MAX = 1_000_000_000


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class _Tenant(_Section):
    weight: Annotated[float, Field(gt=0, le=SERVICE_MAX)] = 1.0
    rate_per_s: Annotated[float, Field(ge=0, le=SERVICE_MAX)] = 0.0
    """Guaranteed service units per second; 0 is no guarantee."""
    burst: Annotated[float, Field(ge=0, le=SERVICE_MAX)] = 0.0
    """Service units."""
    tier: Literal["premium", "standard", "background"] = "standard"
    queue_max: Annotated[int, Field(ge=0, le=COUNT_MAX)] | None = None
    max_tokens: Annotated[int, Field(ge=0, le=COUNT_MAX)] | None = None
    models: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Missing: all models."""


class _File(_Section):
    tenants: Annotated[dict[str, _Tenant], Field(min_length=1)]
    slots: Any = None
    deadline_s: Any = None
    """`slots` and `deadline_s` belong to the simulator's gate. Serving takes them from its options."""


def read_tenants(path: Path) -> list[Tenant]:
    """Read the file. Raises ConfigurationError, which names the place in the file; OSError."""
    document = read_document(path)
    try:
        file = _File.model_validate(_without_nulls(document.value))
    except ValidationError as error:
        finding = error.errors(include_url=False, include_input=False)[0]
        raise document.wrong(finding["loc"], finding["msg"].replace("Input should", "should", 1)) from None
    return [_tenant(name, entry) for name, entry in file.tenants.items()]


def _without_nulls(value: Any) -> Any:
    """Replace an empty entry (`flood:`) by {}."""
    if not isinstance(value, dict) or not isinstance(value.get("tenants"), dict):
        return value
    return {**value, "tenants": {name: entry or {} for name, entry in value["tenants"].items()}}


def _tenant(name: str, entry: _Tenant) -> Tenant:
    limits = {"queue_items_max": entry.queue_max, "max_tokens_max": entry.max_tokens}
    given: dict[str, Any] = {field: value for field, value in limits.items() if value is not None}
    return Tenant(
        name,
        name,
        share=Share(entry.weight, entry.rate_per_s, entry.burst),
        tier=Tier(entry.tier),
        models=entry.models,
        **given,
    )
