"""The fields of a YAML workload: its tenants, their lengths and their arrival processes. examples/workloads/ has
commented files.

Times are seconds of the workload, lengths are tokens of a language model, and rates are arrivals per second or per
minute, by the name of the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from dispatcher.policies.tiers import TENANT_TIERS
from dispatcher.settings.strict import Strict, at_key
from headgate.workloads.arrivals import TOKENS_MAX
from headgate.workloads.distributions import (
    Burst,
    Even,
    Fixed,
    Gamma,
    Length,
    Lognormal,
    OnOff,
    Ramp,
    Rate,
    Spacing,
    Steady,
    Uniform,
)

_DURATION_S_MAX = 100_000_000.0
_RATE_PER_S_MAX = 1_000_000.0
_CALLS_MAX = 1_000
_BURST_MAX = 100_000
_CV_MAX = 20.0
_SIGMA_MAX = 10.0
_INTEGER_MAX = 2**63 - 1


def _range(value: Any) -> Any:
    """Accept a whole number, or [lowest, highest]."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value, value
    if isinstance(value, tuple) and len(value) == 2 and all(type(one) is int for one in value) and value[0] <= value[1]:
        return value
    raise PydanticCustomError("no_range", "should be a whole number, or [lowest, highest]")


_Seconds = Annotated[float, Field(ge=0, le=_DURATION_S_MAX)]
_PositiveSeconds = Annotated[float, Field(gt=0, le=_DURATION_S_MAX)]
_Tokens = Annotated[int, Field(ge=1, le=TOKENS_MAX)]
_Weight = Annotated[float, Field(gt=0, le=1e9)]
_BurstSize = Annotated[int, Field(ge=1, le=_BURST_MAX)]
_Calls = Annotated[int, Field(ge=1, le=_CALLS_MAX)]
_BurstRange = Annotated[tuple[_BurstSize, _BurstSize], BeforeValidator(_range)]
_CallsRange = Annotated[tuple[_Calls, _Calls], BeforeValidator(_range)]


class FixedLength(Strict):
    kind: Literal["fixed"]
    tokens: _Tokens

    def length(self) -> Length:
        return Fixed(self.tokens)


class UniformLength(Strict):
    """Whole numbers from `low` to `high`, both included."""

    kind: Literal["uniform"]
    low: _Tokens
    high: _Tokens

    @model_validator(mode="after")
    def _in_order(self) -> UniformLength:
        if self.high < self.low:
            raise at_key("high", f"{self.high} should be at least low, {self.low}")
        return self

    def length(self) -> Length:
        return Uniform(self.low, self.high)


class LognormalLength(Strict):
    """`sigma`: standard deviation of the natural logarithm. Draws are limited to `min` and `max`."""

    kind: Literal["lognormal"]
    median: Annotated[float, Field(gt=0, le=TOKENS_MAX)]
    sigma: Annotated[float, Field(ge=0, le=_SIGMA_MAX)]
    min: _Tokens = 1
    max: _Tokens = TOKENS_MAX

    @model_validator(mode="after")
    def _in_order(self) -> LognormalLength:
        if self.max < self.min:
            raise at_key("max", f"{self.max} should be at least min, {self.min}")
        return self

    def length(self) -> Length:
        return Lognormal(self.median, self.sigma, self.min, self.max)


class EmpiricalLength(Strict):
    """A column of a trace in headgate's or Azure's format. `file` is relative to the folder of the YAML file.

    Without `column` it is that of the same side, input or output. If input and output are of one file, each request
    has both from one row.
    """

    kind: Literal["empirical"]
    file: Annotated[str, Field(min_length=1, max_length=4096)]
    column: Literal["input_tokens", "output_tokens", "ContextTokens", "GeneratedTokens"] | None = None


LengthDistribution = Annotated[
    FixedLength | UniformLength | LognormalLength | EmpiricalLength, Field(discriminator="kind")
]


_PositiveRate = Annotated[float, Field(gt=0, le=_RATE_PER_S_MAX)]
_RampRate = Annotated[float, Field(ge=0, le=_RATE_PER_S_MAX)]
_Cv = Annotated[float, Field(gt=0, le=_CV_MAX)]


class _Process(Strict):
    start_s: _Seconds = 0.0
    end_s: _PositiveSeconds | None = None
    """Arrivals are before it. At most duration_s, which is the default."""

    def spacing_of(self) -> Spacing:
        return Gamma()

    def rate(self, over_s: float) -> Rate:
        """Return the rate, of a process that lasts `over_s` seconds."""
        raise NotImplementedError

    def burst_of(self) -> Burst | None:
        return None


class _Rated(_Process):
    """Exactly one of the two rates is given."""

    rate_per_s: _PositiveRate | None = None
    rate_per_min: _PositiveRate | None = None

    @model_validator(mode="after")
    def _one_rate(self) -> _Rated:
        if (self.rate_per_s is None) == (self.rate_per_min is None):
            raise PydanticCustomError("rate", "needs either 'rate_per_s' or 'rate_per_min'")
        return self

    @property
    def per_s(self) -> float:
        return self.rate_per_s if self.rate_per_s is not None else (self.rate_per_min or 0.0) / 60.0

    def rate(self, over_s: float) -> Rate:
        return Steady(self.per_s)


class _Spaced(_Process):
    """How the arrivals of a changing rate are spaced."""

    spacing: Literal["uniform", "poisson", "gamma"] = "uniform"
    cv: _Cv | None = None

    @model_validator(mode="after")
    def _cv_with_gamma(self) -> _Spaced:
        if self.spacing == "gamma" and self.cv is None:
            raise at_key("cv", "is missing, which spacing 'gamma' needs")
        if self.spacing != "gamma" and self.cv is not None:
            raise at_key("cv", "is for spacing 'gamma'")
        return self

    def spacing_of(self) -> Spacing:
        return Even() if self.spacing == "uniform" else Gamma(1.0 if self.cv is None else self.cv)


class UniformArrivals(_Rated):
    """One arrival every 1 / rate; the first after the fraction `phase` of such a gap."""

    kind: Literal["uniform"]
    phase: Annotated[float, Field(ge=0, lt=1)] = 0.0

    def spacing_of(self) -> Spacing:
        return Even(self.phase)


class PoissonArrivals(_Rated):
    kind: Literal["poisson"]


class GammaArrivals(_Rated):
    """Gaps of mean 1 / rate and coefficient of variation `cv`."""

    kind: Literal["gamma"]
    cv: _Cv

    def spacing_of(self) -> Spacing:
        return Gamma(self.cv)


class OnOffArrivals(_Rated, _Spaced):
    """The rate for `on_s`, then nothing for `off_s`, again and again."""

    kind: Literal["on_off"]
    on_s: _PositiveSeconds
    off_s: _PositiveSeconds

    def rate(self, over_s: float) -> Rate:
        return OnOff(self.per_s, self.on_s, self.off_s)


class RampArrivals(_Spaced):
    """The rate changes linearly from start_s to end_s. Exactly one pair of rates is given."""

    kind: Literal["ramp"]
    from_per_s: _RampRate | None = None
    to_per_s: _RampRate | None = None
    from_per_min: _RampRate | None = None
    to_per_min: _RampRate | None = None

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

    def rate(self, over_s: float) -> Rate:
        return Ramp(*self.per_s, over_s)


class BurstShape(Strict):
    """With `probability`, an arrival is `size` requests at once: a number, or [lowest, highest]."""

    probability: Annotated[float, Field(ge=0, le=1)]
    size: _BurstRange


class BurstArrivals(_Rated, _Spaced):
    """Arrivals at the rate, of which some are bursts. The rate counts a burst as one arrival: requests come at
    rate x (1 - probability + probability x mean size)."""

    kind: Literal["bursts"]
    spacing: Literal["uniform", "poisson", "gamma"] = "poisson"
    burst: BurstShape

    def burst_of(self) -> Burst | None:
        return Burst(self.burst.probability, *self.burst.size)


ArrivalProcess = Annotated[
    UniformArrivals | PoissonArrivals | GammaArrivals | OnOffArrivals | RampArrivals | BurstArrivals,
    Field(discriminator="kind"),
]


_Label = Annotated[str, Field(min_length=1, max_length=200)]


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
    calls: _CallsRange
    weight: _Weight


class InteractionFields(Strict):
    """`calls` per interaction: a number, [lowest, highest], or a list of {calls, weight}.

    Stage k is due k x `think_s` after the first stage, and is never sent before the stage before it was answered.
    """

    calls: Annotated[tuple[CallsShareFields, ...], BeforeValidator(_calls_shares)]
    think_s: _Seconds = 0.0


class TenantFields(Strict):
    arrivals: Annotated[tuple[ArrivalProcess, ...], BeforeValidator(_one_or_many)]
    """One process or several. Their start_s and end_s decide whether they overlap."""
    input: LengthDistribution
    output: LengthDistribution
    weight: _Weight = 1.0
    tier: Annotated[str, BeforeValidator(_tier)] | None = None
    slo_ttft_ms: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Target of the time from arrival to first token."""
    requests: Annotated[int, Field(ge=1, le=_INTEGER_MAX)] | None = None
    """The most requests. The last interaction is always complete."""
    system_tokens: Annotated[int, Field(ge=0, le=TOKENS_MAX)] = 0
    """Part of the input; the whole input if that is shorter."""
    app: _Label | None = None
    model: _Label | None = None
    """One of the fleet's (`--fleet`). Default: the first."""
    slo_class: _Label | None = None
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

    duration_s: _PositiveSeconds
    seed: Annotated[int, Field(ge=0, le=_INTEGER_MAX)] = 0
    tenants: Annotated[dict[str, TenantFields], Field(min_length=1)]
