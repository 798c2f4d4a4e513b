"""The arrival processes of a YAML workload: the fields of each kind, and the Process that it makes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from dispatcher.settings.strict import Strict, at_key
from headgate.workloads.described.model import CV_MAX, RATE_PER_S_MAX, BurstRange, PositiveSeconds, Seconds
from headgate.workloads.processes import Burst, Even, Gamma, OnOff, Ramp, Rate, Spacing, Steady

PositiveRate = Annotated[float, Field(gt=0, le=RATE_PER_S_MAX)]
RampRate = Annotated[float, Field(ge=0, le=RATE_PER_S_MAX)]
Cv = Annotated[float, Field(gt=0, le=CV_MAX)]


class _Process(Strict):
    start_s: Seconds = 0.0
    end_s: PositiveSeconds | None = None
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

    rate_per_s: PositiveRate | None = None
    rate_per_min: PositiveRate | None = None

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
    cv: Cv | None = None

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
    cv: Cv

    def spacing_of(self) -> Spacing:
        return Gamma(self.cv)


class OnOffArrivals(_Rated, _Spaced):
    """The rate for `on_s`, then nothing for `off_s`, again and again."""

    kind: Literal["on_off"]
    on_s: PositiveSeconds
    off_s: PositiveSeconds

    def rate(self, over_s: float) -> Rate:
        return OnOff(self.per_s, self.on_s, self.off_s)


class RampArrivals(_Spaced):
    """The rate changes linearly from start_s to end_s. Exactly one pair of rates is given."""

    kind: Literal["ramp"]
    from_per_s: RampRate | None = None
    to_per_s: RampRate | None = None
    from_per_min: RampRate | None = None
    to_per_min: RampRate | None = None

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
    size: BurstRange


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
