"""The fields of a YAML workload: frozen models, each field with its unit. reading.py makes workloads of them;
examples/workloads/ has commented files.

Times are seconds of the workload, lengths tokens of a language model, rates arrivals a second or a minute, whichever of
the two keys is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from dispatcher.policies.tiers import TENANT_TIERS
from headgate.workloads.traces.rows import TOKENS_MAX

DURATION_S_MAX = 100_000_000.0
RATE_PER_S_MAX = 1_000_000.0
CALLS_MAX = 1_000
BURST_MAX = 100_000
CV_MAX = 20.0
SIGMA_MAX = 10.0
INTEGER_MAX = 2**63 - 1


def at_key(key: str, what: str) -> PydanticCustomError:
    """What is wrong with a key of the mapping that is being validated."""
    return PydanticCustomError("at_key", "{what}", {"key": key, "what": what})


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: Any) -> Any:
        known = list(cls.model_fields)
        if not isinstance(value, Mapping):
            raise PydanticCustomError("no_mapping", "should be a mapping of {known}", {"known": ", ".join(known)})
        for key in value:
            if key not in known:
                close = get_close_matches(str(key), known, 1)
                meant = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"
                raise at_key(key, f"is not known ({meant})")
        return value


def _pair(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value, value
    if isinstance(value, tuple) and len(value) == 2 and all(type(one) is int for one in value) and value[0] <= value[1]:
        return value
    raise PydanticCustomError("no_range", "should be a whole number, or [lowest, highest]")


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


PositiveSeconds = Annotated[float, Field(gt=0, le=DURATION_S_MAX)]
RateField = Annotated[float, Field(gt=0, le=RATE_PER_S_MAX)]
Tokens = Annotated[int, Field(ge=1, le=TOKENS_MAX)]
Whole = Annotated[int, Field(ge=1, le=BURST_MAX)]
Calls = Annotated[int, Field(ge=1, le=CALLS_MAX)]
Range = Annotated[tuple[Whole, Whole], BeforeValidator(_pair)]


# When requests come


class _Process(_Model):
    start_s: Annotated[float, Field(ge=0, le=DURATION_S_MAX)] = 0.0
    end_s: PositiveSeconds | None = None
    """Not after duration_s, which it is where it is left out. Arrivals are before it."""


class _Rated(_Process):
    rate_per_s: RateField | None = None
    rate_per_min: RateField | None = None
    """Exactly one of the two."""

    @model_validator(mode="after")
    def _one_rate(self) -> _Rated:
        if (self.rate_per_s is None) == (self.rate_per_min is None):
            raise PydanticCustomError("rate", "needs either 'rate_per_s' or 'rate_per_min'")
        return self

    @property
    def per_s(self) -> float:
        return self.rate_per_s if self.rate_per_s is not None else (self.rate_per_min or 0.0) / 60.0


class _Spaced(_Model):
    """How the arrivals of a rate that changes are spaced."""

    spacing: Literal["uniform", "poisson", "gamma"] = "uniform"
    cv: Annotated[float, Field(gt=0, le=CV_MAX)] | None = None

    @model_validator(mode="after")
    def _cv_where_gamma(self) -> _Spaced:
        if self.spacing == "gamma" and self.cv is None:
            raise at_key("cv", "is missing, which spacing 'gamma' needs")
        if self.spacing != "gamma" and self.cv is not None:
            raise at_key("cv", "is for spacing 'gamma'")
        return self


class UniformArrivals(_Rated):
    """One every 1 / rate; the first after `phase` of such a gap."""

    kind: Literal["uniform"]
    phase: Annotated[float, Field(ge=0, lt=1)] = 0.0


class PoissonArrivals(_Rated):
    kind: Literal["poisson"]


class GammaArrivals(_Rated):
    """Gaps of mean 1 / rate and coefficient of variation `cv`."""

    kind: Literal["gamma"]
    cv: Annotated[float, Field(gt=0, le=CV_MAX)]


class OnOffArrivals(_Rated, _Spaced):
    """The rate for `on_s`, nothing for `off_s`, again and again."""

    kind: Literal["on_off"]
    on_s: PositiveSeconds
    off_s: PositiveSeconds


class RampArrivals(_Process, _Spaced):
    """The rate changes in a line from start_s to end_s."""

    kind: Literal["ramp"]
    from_per_s: Annotated[float, Field(ge=0, le=RATE_PER_S_MAX)] | None = None
    to_per_s: Annotated[float, Field(ge=0, le=RATE_PER_S_MAX)] | None = None
    from_per_min: Annotated[float, Field(ge=0, le=RATE_PER_S_MAX)] | None = None
    to_per_min: Annotated[float, Field(ge=0, le=RATE_PER_S_MAX)] | None = None

    @model_validator(mode="after")
    def _one_pair(self) -> RampArrivals:
        given = [rate is not None for rate in (self.from_per_s, self.to_per_s, self.from_per_min, self.to_per_min)]
        if given not in ([True, True, False, False], [False, False, True, True]):
            raise PydanticCustomError("rate", "needs 'from_per_s' and 'to_per_s', or 'from_per_min' and 'to_per_min'")
        if not any(self.per_s):
            raise PydanticCustomError("rate", "should ramp from or to a rate above 0")
        return self

    @property
    def per_s(self) -> tuple[float, float]:
        if self.from_per_s is not None and self.to_per_s is not None:
            return self.from_per_s, self.to_per_s
        return (self.from_per_min or 0.0) / 60.0, (self.to_per_min or 0.0) / 60.0


class BurstShape(_Model):
    """With `probability` an arrival is of `size` requests at once: a number, or [lowest, highest]."""

    probability: Annotated[float, Field(ge=0, le=1)]
    size: Range


class BurstArrivals(_Rated, _Spaced):
    """Arrivals at the rate, Poisson where nothing else is said, of which some are bursts. The rate counts a burst once:
    requests come at rate x (1 - probability + probability x mean size)."""

    kind: Literal["bursts"]
    spacing: Literal["uniform", "poisson", "gamma"] = "poisson"
    burst: BurstShape


ArrivalProcess = Annotated[
    UniformArrivals | PoissonArrivals | GammaArrivals | OnOffArrivals | RampArrivals | BurstArrivals,
    Field(discriminator="kind"),
]


# How long they are


class FixedLength(_Model):
    kind: Literal["fixed"]
    tokens: Tokens


class UniformLength(_Model):
    """Whole numbers from `low` to `high`, both included."""

    kind: Literal["uniform"]
    low: Tokens
    high: Tokens

    @model_validator(mode="after")
    def _in_order(self) -> UniformLength:
        if self.high < self.low:
            raise at_key("high", f"{self.high} should be at least low, {self.low}")
        return self


class LognormalLength(_Model):
    """`sigma`: standard deviation of the natural logarithm. Draws are kept from `min` to `max`."""

    kind: Literal["lognormal"]
    median: Annotated[float, Field(gt=0, le=TOKENS_MAX)]
    sigma: Annotated[float, Field(ge=0, le=SIGMA_MAX)]
    min: Tokens = 1
    max: Tokens = TOKENS_MAX

    @model_validator(mode="after")
    def _in_order(self) -> LognormalLength:
        if self.max < self.min:
            raise at_key("max", f"{self.max} should be at least min, {self.min}")
        return self


class EmpiricalLength(_Model):
    """A column of a trace, ours or Azure's; `file` from the folder of the YAML file. Left out, `column` is that of the
    same side. Where input and output are of one file, a request has both from one row."""

    kind: Literal["empirical"]
    file: Annotated[str, Field(min_length=1, max_length=4096)]
    column: Literal["input_tokens", "output_tokens", "ContextTokens", "GeneratedTokens"] | None = None


LengthDistribution = Annotated[
    FixedLength | UniformLength | LognormalLength | EmpiricalLength, Field(discriminator="kind")
]


# Whose they are


class CallsShareOf(_Model):
    calls: Annotated[tuple[Calls, Calls], BeforeValidator(_pair)]
    weight: Annotated[float, Field(gt=0, le=1e9)]


class InteractionsOf(_Model):
    """`calls` an interaction: a number, [lowest, highest], or a list of {calls, weight}. Stage k is due k x `think_s`
    after the first, and is not sent before the stage before it was answered."""

    calls: Annotated[tuple[CallsShareOf, ...], BeforeValidator(_calls_shares)]
    think_s: Annotated[float, Field(ge=0, le=DURATION_S_MAX)] = 0.0


class TenantDescription(_Model):
    arrivals: Annotated[tuple[ArrivalProcess, ...], BeforeValidator(_one_or_many)]
    """One process, or several: one after the other, or at the same time, as their start_s and end_s say."""
    input: LengthDistribution
    output: LengthDistribution
    weight: Annotated[float, Field(gt=0, le=1e9)] = 1.0
    tier: Annotated[str, BeforeValidator(_tier)] | None = None
    slo_ttft_ms: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Wanted from arrival to first token."""
    requests: Annotated[int, Field(ge=1, le=INTEGER_MAX)] | None = None
    """At most; an interaction is made whole."""
    system_tokens: Annotated[int, Field(ge=0, le=TOKENS_MAX)] = 0
    """Part of the input; all of it where it is shorter."""
    app: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    model: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    interactions: InteractionsOf | None = None

    @model_validator(mode="after")
    def _system_within_input(self) -> TenantDescription:
        longest = self.input.tokens if isinstance(self.input, FixedLength) else TOKENS_MAX
        longest = self.input.high if isinstance(self.input, UniformLength) else longest
        if self.system_tokens > longest:
            raise at_key("system_tokens", f"{self.system_tokens} is more than the {longest} input tokens it is part of")
        return self


class WorkloadDescription(_Model):
    """`duration_s`: nothing begins at or after it."""

    duration_s: PositiveSeconds
    seed: Annotated[int, Field(ge=0, le=INTEGER_MAX)] = 0
    tenants: Annotated[dict[str, TenantDescription], Field(min_length=1)]
