"""The fields of a YAML workload and of its tenants. examples/workloads/ has commented files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from dispatcher.policies.tiers import TENANT_TIERS
from dispatcher.settings.strict import Strict, at_key
from headgate.workloads.described.arrival_fields import ArrivalProcess
from headgate.workloads.described.length_fields import FixedLength, LengthDistribution, UniformLength
from headgate.workloads.described.model import INTEGER_MAX, CallsRange, PositiveSeconds, Seconds, Weight
from headgate.workloads.traces.rows import TOKENS_MAX

Label = Annotated[str, Field(min_length=1, max_length=200)]


def _tier(value: Any) -> Any:
    if value not in TENANT_TIERS:
        raise PydanticCustomError("no_tier", "should be one of {tiers}", {"tiers": ", ".join(TENANT_TIERS)})
    return value


def _one_or_many(value: Any) -> Any:
    if isinstance(value, tuple) and not value:
        raise PydanticCustomError("empty", "should be one process or a list of them")
    return value if isinstance(value, tuple) else (value,)


def _calls_shares(value: Any) -> Any:
    if isinstance(value, tuple) and any(isinstance(one, Mapping) for one in value):
        return value
    return ({"calls": value, "weight": 1.0},)


class CallsShareFields(Strict):
    calls: CallsRange
    weight: Weight


class InteractionFields(Strict):
    """`calls` per interaction: a number, [lowest, highest], or a list of {calls, weight}.

    Stage k is due k x `think_s` after the first stage, and is never sent before the stage before it was answered.
    """

    calls: Annotated[tuple[CallsShareFields, ...], BeforeValidator(_calls_shares)]
    think_s: Seconds = 0.0


class TenantFields(Strict):
    arrivals: Annotated[tuple[ArrivalProcess, ...], BeforeValidator(_one_or_many)]
    """One process or several. Their start_s and end_s decide whether they overlap."""
    input: LengthDistribution
    output: LengthDistribution
    weight: Weight = 1.0
    tier: Annotated[str, BeforeValidator(_tier)] | None = None
    slo_ttft_ms: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Target of the time from arrival to first token."""
    requests: Annotated[int, Field(ge=1, le=INTEGER_MAX)] | None = None
    """The most requests. The last interaction is always complete."""
    system_tokens: Annotated[int, Field(ge=0, le=TOKENS_MAX)] = 0
    """Part of the input; the whole input if that is shorter."""
    app: Label | None = None
    model: Label | None = None
    """One of the fleet's (`--fleet`). Default: the first."""
    slo_class: Label | None = None
    """When the first token is due: a class of the fleet file. Default: normal."""
    interactions: InteractionFields | None = None

    @model_validator(mode="after")
    def _system_within_input(self) -> TenantFields:
        longest = self.input.tokens if isinstance(self.input, FixedLength) else TOKENS_MAX
        longest = self.input.high if isinstance(self.input, UniformLength) else longest
        if self.system_tokens > longest:
            raise at_key("system_tokens", f"{self.system_tokens} is more than the {longest} input tokens it is part of")
        return self


class WorkloadFields(Strict):
    """No process begins at or after `duration_s`."""

    duration_s: PositiveSeconds
    seed: Annotated[int, Field(ge=0, le=INTEGER_MAX)] = 0
    tenants: Annotated[dict[str, TenantFields], Field(min_length=1)]
