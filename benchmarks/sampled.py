"""A workload of any size with the lengths of another workload. The benchmark of a million requests uses it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Literal

from headgate.workloads.arrivals import Arrival, WorkloadError

Spacing = Literal["poisson", "uniform"]


@dataclass(frozen=True)
class SampledWorkload:
    """`requests` requests, each with a tenant drawn evenly from `tenant_count` tenants and a pair (input tokens, output
    tokens) drawn evenly from `pairs`. Each iteration draws the same requests again, from `seed`; none are held.

    `rate_per_s`: of all tenants together. `poisson`: exponential gaps, the first before the first request. `uniform`:
    one request every 1 / rate_per_s seconds, the first at 0.
    """

    pairs: tuple[tuple[int, int], ...]
    requests: int
    tenant_count: int
    rate_per_s: float
    seed: int = 0
    spacing: Spacing = "poisson"
    name: str = "sampled"
    notes: tuple[str, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    tiers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (self.pairs and self.requests > 0 and self.tenant_count > 0 and self.rate_per_s > 0.0):
            raise WorkloadError(f"{self.name}: needs at least one pair, request and tenant, and a rate above 0")

    @classmethod
    def of(
        cls,
        arrivals: Iterable[Arrival],
        *,
        requests: int,
        tenants: int,
        rate_per_s: float,
        seed: int = 0,
        spacing: Spacing = "poisson",
        name: str = "sampled",
    ) -> SampledWorkload:
        """Sample the lengths of `arrivals`: input and output of a request stay together."""
        pairs = tuple((arrival.input_tokens, arrival.output_tokens) for arrival in arrivals)
        return cls(pairs, requests, tenants, rate_per_s, seed, spacing, name)

    @cached_property
    def tenants(self) -> tuple[str, ...]:
        digits = len(str(self.tenant_count - 1))
        return tuple(f"tenant-{number:0{digits}}" for number in range(self.tenant_count))

    @cached_property
    def last_arrival_s(self) -> float:
        return deque(self._times(), maxlen=1)[0]

    def _times(self) -> Iterator[float]:
        if self.spacing == "uniform":
            for number in range(self.requests):
                yield number / self.rate_per_s
            return
        gap_s, rate_per_s, now_s = Random(f"{self.seed}/times").expovariate, self.rate_per_s, 0.0
        for _ in range(self.requests):
            now_s += gap_s(rate_per_s)
            yield now_s

    def __iter__(self) -> Iterator[Arrival]:
        draw = Random(f"{self.seed}/requests").random
        tenants, count = self.tenants, self.tenant_count
        pairs, lengths = self.pairs, len(self.pairs)
        for now_s in self._times():
            tenant = tenants[int(draw() * count)]
            input_tokens, output_tokens = pairs[int(draw() * lengths)]
            yield Arrival(now_s, tenant, input_tokens, output_tokens)
