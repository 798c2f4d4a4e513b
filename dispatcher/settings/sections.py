"""Sections of headgate's settings that the gate's processes, `headgate serve` and the simulator share.

YAML files and environment variables with JSON have the same sections. `tiers` is TierFloors (shard/settings.py), and
`throttling` is ThrottleLimits (policies/throttling.py).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, RootModel, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from dispatcher.model.tenants import PREFIX_GROUP, Tenant, check_model_name
from dispatcher.operations.administration import with_settings
from dispatcher.policies.planning.slo import SloClass, SloClasses
from dispatcher.policies.share_bounds import share_problem
from dispatcher.policies.tiers import TierName
from dispatcher.settings.strict import Strict

_COUNT_MAX = 1_000_000_000
Count = Annotated[int, Field(ge=0, le=_COUNT_MAX)]
Limit = Annotated[int, Field(ge=1, le=_COUNT_MAX)]
ModelName = Annotated[str, AfterValidator(check_model_name)]


class TenantSection(Strict):
    """A tenant's settings (operations/administration.py), of which a file or an administrator gives some.

    A missing field has the default of model/tenants.py. The bounds of the share are those of
    policies/share_bounds.py.
    """

    weight: float | None = None
    """The capacity that no guarantee uses is shared among the waiting tenants in proportion to their weights."""
    rate_per_s: float | None = None
    """Guaranteed service units per second; 0: no guarantee."""
    burst: float | None = None
    """The service units that the tenant may use at once under its guarantee."""
    tier: TierName | None = None
    """Missing: standard."""
    queue_max: Count | None = None
    """The most requests of the tenant that may wait; 0: a request that cannot be dispatched at once is refused."""
    max_tokens: Limit | None = None
    """The highest `max_tokens` that a request may have."""
    models: Annotated[tuple[ModelName, ...], Field(min_length=1, strict=False)] | None = None
    """The models that the tenant may use. Missing: all models."""
    adapters: Annotated[tuple[ModelName, ...], Field(max_length=1000, strict=False)] | None = None
    """The LoRA adapters that the tenant may use, beside the models. Missing: none."""
    slo_class: str | None = None
    """The SLO class of the tenant's requests; a request may name a laxer one. Missing: the usual class."""
    prefix_group: Annotated[str, Field(pattern=f"^{PREFIX_GROUP}$")] | None = None
    """The tenants of a group share cached prefixes, and can notice by the time of a first token what another of them
    asked. Missing or empty: the tenant shares none."""

    @field_validator("weight", "rate_per_s", "burst", mode="before")
    @classmethod
    def _is_in_bounds(cls, value: Any, info: ValidationInfo) -> Any:
        problem = share_problem(info.field_name or "", value)
        if problem is not None:
            raise PydanticCustomError("share", "{problem}", {"problem": problem})
        return value

    def given(self) -> dict[str, Any]:
        """Return the fields that were given, for operations/administration.py."""
        return self.model_dump(include=self.model_fields_set)

    def tenant(self, name: str) -> Tenant:
        return with_settings(Tenant(name), self.model_dump(exclude_none=True))


class SloClassSection(Strict):
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
