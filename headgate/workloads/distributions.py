"""What workloads are drawn from: lengths of requests, and arrival processes. The random source is a parameter. Pure.

A length is a whole number of tokens from 1 to TOKENS_MAX.

An arrival process has a spacing and a rate. The spacing makes points u on an axis of its own, one per unit on average.
The rate r maps them to time: point u arrives at the time t at which the integral of the rate reaches u,

    R(t) = integral from 0 to t of r(s) ds = u,    t = R^-1(u),

in seconds from the start of the process, with r in arrivals per second. With exponential gaps this is the Poisson
process of intensity r. Source: Çinlar, Introduction to Stochastic Processes (1975), chapter 4.7; Devroye, Non-Uniform
Random Variate Generation (1986), chapter VI.1.3 (inversion). Invariant: times never decrease.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from headgate.workloads.arrivals import TOKENS_MAX


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


_ROUNDING = 1e-9
"""The tolerance for rounding, in arrivals or cycles. A point at the end of a period belongs to the next period, even if
rounding puts it before."""
_LEAST = 1e-200
"""Fewer arrivals than this count as none: their products with a rate would underflow."""


class Spacing(Protocol):
    def points(self, random: Random) -> Iterator[float]:
        """Yield points without end, one per unit on average."""
        ...


@dataclass(frozen=True, slots=True)
class Even:
    """One point per unit; the first at `phase` (0 to 1)."""

    phase: float = 0.0

    def points(self, random: Random) -> Iterator[float]:
        number = 0
        while True:
            yield number + self.phase
            number += 1


@dataclass(frozen=True, slots=True)
class Gamma:
    """Independent gamma-distributed gaps of mean 1 and coefficient of variation `cv` (standard deviation / mean): shape
    1 / cv^2, scale cv^2. With 1 the gaps are exponential, as in the Poisson process; above 1 arrivals cluster. The
    first gap is before the first arrival.

    Source: bursty traffic in Li et al., AlpaServe (OSDI 2023), section 6, and Wang et al., BurstGPT (2024).
    """

    cv: float = 1.0

    def points(self, random: Random) -> Iterator[float]:
        at = 0.0
        if self.cv == 1.0:
            while True:
                at += random.expovariate(1.0)
                yield at
        shape, scale = 1.0 / self.cv**2, self.cv**2
        while True:
            at += random.gammavariate(shape, scale)
            yield at


class Rate(Protocol):
    def reached_s(self, accumulated: float) -> float:
        """Return when, in seconds from the start, the expected arrivals reach `accumulated`."""
        ...

    def accumulated(self, seconds: float) -> float:
        """Return the expected arrivals in the first `seconds`."""
        ...


@dataclass(frozen=True, slots=True)
class Steady:
    rate_per_s: float

    def reached_s(self, accumulated: float) -> float:
        return accumulated / self.rate_per_s

    def accumulated(self, seconds: float) -> float:
        return self.rate_per_s * seconds


@dataclass(frozen=True, slots=True)
class OnOff:
    """`rate_per_s` for `on_s` seconds, then nothing for `off_s`, again and again.

    Source: VTC (OSDI 2024), section 5.2, Figures 5, 6 and 10. A gap that is not over at the end of an ON period
    continues in the next one.
    """

    rate_per_s: float
    on_s: float
    off_s: float

    def reached_s(self, accumulated: float) -> float:
        on = accumulated / self.rate_per_s
        cycles = math.floor(on / self.on_s + _ROUNDING)
        return cycles * (self.on_s + self.off_s) + max(0.0, on - cycles * self.on_s)

    def accumulated(self, seconds: float) -> float:
        cycles, rest_s = divmod(seconds, self.on_s + self.off_s)
        return self.rate_per_s * (cycles * self.on_s + min(rest_s, self.on_s))


@dataclass(frozen=True, slots=True)
class Ramp:
    """Linear from `from_per_s` at the start to `to_per_s` after `over_s` seconds: r(t) = a + (b - a) t / D, so
    R(t) = a t + c t^2 with c = (b - a) / 2D, and t = 2u / (a + sqrt(a^2 + 4 c u)), which is exact for small c.

    Source: VTC (OSDI 2024), Figure 9 (linearly increasing rate).
    """

    from_per_s: float
    to_per_s: float
    over_s: float

    def reached_s(self, accumulated: float) -> float:
        if accumulated <= _LEAST:
            return 0.0
        curve = (self.to_per_s - self.from_per_s) / (2.0 * self.over_s)
        under_root = self.from_per_s**2 + 4.0 * curve * accumulated
        return 2.0 * accumulated / (self.from_per_s + math.sqrt(max(0.0, under_root)))

    def accumulated(self, seconds: float) -> float:
        return self.from_per_s * seconds + (self.to_per_s - self.from_per_s) * seconds**2 / (2.0 * self.over_s)


@dataclass(frozen=True, slots=True)
class Burst:
    """With `probability`, an arrival is `low` to `high` requests at once, each number equally likely; else one request.

    Source: the BWFQ paper's evaluation (bursts of 40 to 150 requests with probability 60 to 90 %).
    """

    probability: float
    low: int
    high: int

    def size(self, random: Random) -> int:
        if random.random() >= self.probability:
            return 1
        return self.low + int(random.random() * (self.high - self.low + 1))

    @property
    def mean(self) -> float:
        return 1.0 - self.probability + self.probability * (self.low + self.high) / 2.0


@dataclass(frozen=True, slots=True)
class TimedArrivals:
    """Arrivals from `start_s` until before `end_s`, in seconds of the workload."""

    spacing: Spacing
    rate: Rate
    start_s: float
    end_s: float
    burst: Burst | None = None

    def times(self, random: Random) -> Iterator[float]:
        end = self.rate.accumulated(self.end_s - self.start_s) - _ROUNDING
        for point in self.spacing.points(random):
            if point >= end:
                return
            at_s = self.start_s + self.rate.reached_s(point)
            for _ in range(1 if self.burst is None else self.burst.size(random)):
                yield at_s

    @property
    def expected(self) -> float:
        """The average number of requests."""
        arrivals = self.rate.accumulated(self.end_s - self.start_s)
        return arrivals if self.burst is None else arrivals * self.burst.mean
