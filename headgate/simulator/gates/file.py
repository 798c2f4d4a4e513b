"""Reads the gate of a simulation from a YAML file (`headgate simulate --gate on --tenants FILE.yaml`):

    slots: 16
    deadline_s: 300        # optional: longest wait from arrival to dispatch; then the request is rejected
    tenants:
      quiet: {weight: 2, rate_per_s: 500, burst: 2000, tier: premium, queue_max: 1000}
      flood: {weight: 1}

`tenants:` may be left out; its entries then stand beside `slots`. A tenant that is not named has weight 1 and no
guarantee. Rates and bursts are in service units (in requests for the order `ratio`, which has no costs). Two entries
switch on what the gate can do besides (dispatcher/shard/settings.py):

    tiers: {shares: {premium: 0.5, standard: 0.3, background: 0.1}, slack: 4096}   # premium first, each with a floor
    throttling: {user: 60, app: 600, apps: {chat: 900}, window_s: 60}              # limits while the KV cache is full
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.clocks import Share
from dispatcher.policies.throttling import WINDOW_S, Limits
from dispatcher.policies.tiers import Tier
from dispatcher.shard.settings import SLACK, TierFloors
from headgate.simulator.gates.spec import DEADLINE_S, QUEUE_MAX, SLOTS_MAX, GateSpec, GateTenant
from headgate.workloads.described.document import Document, Loc, read_document

SERVICE_MAX = 1e12
SECONDS_MAX = 1e9
FOUND_CHARS_MAX = 40
TENANTS = ("tenants",)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class _Tenant(_Model):
    weight: Annotated[float, Field(gt=0, le=SERVICE_MAX)] = 1.0
    rate_per_s: Annotated[float, Field(ge=0, le=SERVICE_MAX)] = 0.0
    burst: Annotated[float, Field(ge=0, le=SERVICE_MAX)] = 0.0
    tier: Annotated[Tier, Field(strict=False)] = Tier.STANDARD
    queue_max: Annotated[int, Field(ge=0, le=1_000_000_000)] = QUEUE_MAX


class _Tiers(_Model):
    shares: dict[Annotated[Tier, Field(strict=False)], float]
    slack: float = SLACK


class _Throttling(_Model):
    user: int
    app: int
    apps: dict[str, int] = Field(default_factory=dict)
    window_s: float = WINDOW_S


class _File(_Model):
    slots: Annotated[int, Field(ge=1, le=SLOTS_MAX)]
    deadline_s: Annotated[float, Field(gt=0, le=SECONDS_MAX)] = DEADLINE_S
    tiers: _Tiers | None = None
    throttling: _Throttling | None = None
    tenants: dict[str, _Tenant]


_MODELS: dict[int | str, type[_Model]] = {"tenants": _Tenant, "tiers": _Tiers, "throttling": _Throttling}
"""What stands under a key of the file."""


def read_gate(path: Path, *, order: str) -> GateSpec:
    """Read a gate. Raises ConfigurationError, which names the place in the file; ValueError for an unknown order."""
    document = read_document(path)
    flat = isinstance(document.value, dict) and "tenants" not in document.value
    try:
        file = _File.model_validate(_with_tenants_key(document.value))
    except ValidationError as error:
        raise _wrong(document, error.errors(include_url=False)[0], flat) from None
    tenants = {name: _tenant(entry) for name, entry in file.tenants.items()}
    tiers, throttling = _tiers(document, file), _throttling(document, file)
    return GateSpec(file.slots, order, tenants, file.deadline_s, tiers, throttling)


def _tiers(document: Document, file: _File) -> TierFloors | None:
    if file.tiers is None:
        return None
    try:
        return TierFloors({tier.value: share for tier, share in file.tiers.shares.items()}, file.tiers.slack)
    except ValueError as error:
        raise document.wrong(("tiers",), str(error)) from None


def _throttling(document: Document, file: _File) -> Limits | None:
    found = file.throttling
    if found is None:
        return None
    try:
        return Limits(found.user, found.app, found.apps, found.window_s)
    except ValueError as error:
        raise document.wrong(("throttling",), str(error)) from None


def _with_tenants_key(value: Any) -> Any:
    """Put tenants under `tenants`, and replace an empty entry by {}."""
    if not isinstance(value, dict):
        return value
    settings = {key: value[key] for key in value if "tenants" in value or key in _File.model_fields}
    named = value.get("tenants", {key: value[key] for key in value if key not in settings})
    if isinstance(named, dict):
        named = {name: {} if entry is None else entry for name, entry in named.items()}
    return {**settings, "tenants": {} if named is None else named}


def _tenant(entry: _Tenant) -> GateTenant:
    tier = entry.tier if "tier" in entry.model_fields_set else None
    return GateTenant(Share(entry.weight, entry.rate_per_s, entry.burst), tier, entry.queue_max)


def _wrong(document: Document, error: ErrorDetails, flat: bool) -> ConfigurationError:
    loc: Loc = error["loc"]
    place = loc[1:] if flat and loc[:1] == ("tenants",) else loc
    if error["type"] == "missing":
        return document.wrong(place[:-1], "is missing", key=str(place[-1]))
    return document.wrong(place, _what(error, loc))


def _what(error: ErrorDetails, loc: Loc) -> str:
    fields = _MODELS.get(loc[0], _File).model_fields if loc else _File.model_fields
    if error["type"] == "extra_forbidden":
        return f"is not known here; there are {', '.join(fields)}"
    if error["type"] in ("model_type", "dict_type"):
        return f"should be a mapping of {', '.join(fields) if loc != ('tenants',) else 'tenants'}"
    found = error["input"]
    shown = "" if isinstance(found, dict | tuple) else f", not {str(found)[:FOUND_CHARS_MAX]!r}"
    return error["msg"].replace("Input should", "should", 1) + shown
