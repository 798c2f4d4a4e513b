"""The length distributions of a YAML workload."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dispatcher.settings.strict import Strict, at_key
from headgate.workloads.described.model import SIGMA_MAX, Tokens
from headgate.workloads.lengths import Fixed, Length, Lognormal, Uniform
from headgate.workloads.traces.rows import TOKENS_MAX


class FixedLength(Strict):
    kind: Literal["fixed"]
    tokens: Tokens

    def length(self) -> Length:
        return Fixed(self.tokens)


class UniformLength(Strict):
    """Whole numbers from `low` to `high`, both included."""

    kind: Literal["uniform"]
    low: Tokens
    high: Tokens

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
    sigma: Annotated[float, Field(ge=0, le=SIGMA_MAX)]
    min: Tokens = 1
    max: Tokens = TOKENS_MAX

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
