"""Sections of headgate's configuration that the gate's processes, `headgate serve` and the simulator share.

The same models validate YAML files and environment variables with JSON. They check the bounds, so the policies do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from dispatcher.model.tenants import Tenant, check_model_name
from dispatcher.policies.clocks import Share
from dispatcher.policies.planning.slo import SloClass, SloClasses
from dispatcher.policies.share_bounds import share_problem
from dispatcher.policies.throttling import WINDOW_S, ThrottleLimits
from dispatcher.policies.tiers import TENANT_TIERS, Tier
from dispatcher.shard.settings import TierFloors

SERVICE_MAX = 1e12
COUNT_MAX = 1_000_000_000
SHARES = {Tier.PREMIUM.value: 0.5, Tier.STANDARD.value: 0.35, Tier.BACKGROUND.value: 0.15}
"""The worker's default shares (docs/preemption-design.md, section 4.2)."""

TenantTier = Literal["premium", "standard", "background"]
Count = Annotated[int, Field(ge=0, le=COUNT_MAX)]
Limit = Annotated[int, Field(ge=1, le=COUNT_MAX)]
ModelName = Annotated[str, AfterValidator(check_model_name)]


class SettingsSection(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class TenantSection(SettingsSection):
    """A tenant's share and limits. A missing field has the default of model/tenants.py.

    The bounds of the share are those of policies/share_bounds.py.
    """

    weight: float = 1.0
    """The capacity that no guarantee uses is shared among the waiting tenants in proportion to their weights."""
    rate_per_s: float = 0.0
    """Guaranteed service units per second; 0: no guarantee."""
    burst: float = 0.0
    """The service units that the tenant may use at once under its guarantee."""
    tier: TenantTier | None = None
    """Missing: standard."""
    queue_max: Count | None = None
    """The most requests of the tenant that may wait; 0: a request that cannot be dispatched at once is refused."""
    max_tokens: Limit | None = None
    """The highest `max_tokens` that a request may have."""
    models: Annotated[tuple[ModelName, ...], Field(min_length=1, strict=False)] | None = None
    """The models that the tenant may use. Missing: all models."""
    slo_class: str | None = None
    """The SLO class of the tenant's requests; a request may name a laxer one. Missing: the usual class."""

    @field_validator("weight", "rate_per_s", "burst", mode="before")
    @classmethod
    def _is_in_bounds(cls, value: Any, info: ValidationInfo) -> Any:
        problem = share_problem(info.field_name or "", value)
        if problem is not None:
            raise PydanticCustomError("share", "{problem}", {"problem": problem})
        return value

    def share(self) -> Share:
        return Share(self.weight, self.rate_per_s, self.burst)

    def given(self) -> dict[str, Any]:
        """Return the fields that were given, for operations/tenant_settings.py."""
        return self.model_dump(include=self.model_fields_set)

    def tenant(self, name: str) -> Tenant:
        defaults = Tenant(name)
        return Tenant(
            name,
            share=self.share(),
            tier=Tier(self.tier or Tier.STANDARD),
            models=self.models,
            queue_items_max=defaults.queue_items_max if self.queue_max is None else self.queue_max,
            max_tokens_max=defaults.max_tokens_max if self.max_tokens is None else self.max_tokens,
            slo_class=self.slo_class or "",
        )


class TiersSection(SettingsSection):
    """Tiers at the gate: premium before standard before background, each with a floor (shard/tier_floors.py)."""

    shares: dict[TenantTier, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=lambda: dict(SHARES))  # type: ignore[arg-type]
    """The fraction of all dispatched service that a tier gets at least while it waits; 0 guarantees nothing."""
    slack: Annotated[float, Field(gt=0, le=SERVICE_MAX)] = 4096.0
    """Service units that a tier may be behind its share before it goes first."""

    @model_validator(mode="after")
    def _add_up(self) -> TiersSection:
        if sum(self.shares.values()) > 1 + 1e-9:
            raise PydanticCustomError(
                "shares", "the shares of {tiers} add up to at most 1", {"tiers": ", ".join(TENANT_TIERS)}
            )
        return self

    def floors(self) -> TierFloors:
        shares: Mapping[str, float] = dict(self.shares.items())
        return TierFloors(shares, self.slack)


class ThrottlingSection(SettingsSection):
    """FairServe's limits (policies/throttling.py): only while the fleet is saturated, never in an interaction."""

    user: Limit
    """The most requests of a tenant within a window."""
    app: Limit
    """The most requests of an application, of all tenants together, within a window."""
    apps: dict[str, Limit] = Field(default_factory=dict)
    """The limits of single applications, in place of `app`."""
    window_s: Annotated[float, Field(gt=0, le=86_400)] = WINDOW_S

    def limits(self) -> ThrottleLimits:
        return ThrottleLimits(self.user, self.app, self.apps, self.window_s)


class SloClassSection(SettingsSection):
    """An SLO class (policies/planning/slo.py)."""

    first_token_s: Annotated[float, Field(gt=0, le=86_400)]
    """The first token is due so many seconds after the request's arrival."""
    deferred: bool = False
    """Its requests use capacity that others leave, until their slack is used up."""


class SloClassesSection(RootModel[dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,64}$")], SloClassSection]]):
    """The SLO classes of a pool, by name."""

    model_config = ConfigDict(frozen=True, strict=True)

    @model_validator(mode="after")
    def _fit_together(self) -> SloClassesSection:
        try:
            self.classes()
        except ValueError as error:
            raise PydanticCustomError("slo_classes", "{reason}", {"reason": str(error)}) from None
        return self

    def classes(self) -> SloClasses:
        """Return the classes. Raises ValueError."""
        return SloClasses([SloClass(name, each.first_token_s, each.deferred) for name, each in self.root.items()])
