"""Lengths of requests: distributions of token counts. The random source is a parameter. Pure.

Every draw is a whole number of tokens from 1 to TOKENS_MAX.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from headgate.workloads.traces import TOKENS_MAX


class Length(Protocol):
    def draw(self, random: Random) -> int: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always `tokens`."""

    tokens: int

    def draw(self, random: Random) -> int:
        return self.tokens


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every whole number from `low` to `high` is equally likely; the mean is (low + high) / 2."""

    low: int
    high: int

    def draw(self, random: Random) -> int:
        return self.low + int(random.random() * (self.high - self.low + 1))


@dataclass(frozen=True, slots=True)
class Lognormal:
    """median x exp(sigma Z) with Z standard normal, rounded and limited to `low` and `high` (tokens).

    `sigma` is the standard deviation of the natural logarithm, without unit. Without the limits the mean is
    median x exp(sigma^2 / 2).
    Source: Johnson, Kotz and Balakrishnan, Continuous Univariate Distributions 1, chapter 14; Wang et al., BurstGPT
    (2024), and headgate/workloads/profiles.py for such fits to traces of language models.
    """

    median: float
    sigma: float
    low: int = 1
    high: int = TOKENS_MAX

    def draw(self, random: Random) -> int:
        # exp(100) is far above TOKENS_MAX; without the limit exp() could overflow.
        tokens = self.median * math.exp(min(self.sigma * random.gauss(0.0, 1.0), 100.0))
        return max(self.low, min(self.high, round(tokens)))


@dataclass(frozen=True, slots=True)
class Empirical:
    """The lengths in a trace, each equally likely: draws from the empirical distribution function, as the bootstrap
    does (Efron, Annals of Statistics 7, 1979). `file`: the trace."""

    file: str
    tokens: Sequence[int] = field(repr=False)

    def draw(self, random: Random) -> int:
        return max(1, self.tokens[int(random.random() * len(self.tokens))])


@dataclass(frozen=True, slots=True)
class SampledLengths:
    """Input and output of a request. They are independent, except if both are of one trace: then a request gets both
    from one row, because prompts and answers depend on each other."""

    input: Length
    output: Length

    def draw(self, random: Random) -> tuple[int, int]:
        one, other = self.input, self.output
        if isinstance(one, Empirical) and isinstance(other, Empirical) and one.file == other.file:
            row = int(random.random() * len(one.tokens))
            return max(1, one.tokens[row]), max(1, other.tokens[row])
        return one.draw(random), other.draw(random)
