"""Workloads made from plans: tenants with arrival processes, lengths and interactions. Streamed, never held. Pure.

The same seed gives the same arrivals. The arrivals of a tenant depend only on the seed and on the tenant's own plan:
adding, removing or changing another tenant does not change them. Times, interactions and lengths each have a random
source of their own, so that changing one does not change the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush, merge
from operator import attrgetter
from random import Random

from headgate.workloads.arrivals import Arrival, WorkloadError
from headgate.workloads.lengths import SampledLengths
from headgate.workloads.processes import TimedArrivals

REQUESTS_MAX = 20_000_000
"""The most requests of a workload, which counts them once before it runs."""

Call = tuple[float, int, int]
"""Time in seconds, number of the interaction, stage."""


@dataclass(frozen=True, slots=True)
class CallsShare:
    """Interactions of `low` to `high` calls, each number equally likely. `weight`: relative to the other shares."""

    low: int
    high: int
    weight: float


@dataclass(frozen=True, slots=True)
class InteractionArrivals:
    """Every arrival of the processes begins an interaction: the calls that answer one question of a user.

    Stage k (0, 1, 2, ...) has as arrival_s that of stage 0 + k x `think_s`, its earliest time. The simulator sends it
    at that time or when stage k - 1 is answered, whichever is later.
    Source: FairServe, section 3 and Table 2 (shares of interactions by number of calls).
    """

    shares: tuple[CallsShare, ...]
    think_s: float = 0.0

    def calls(self, random: Random) -> int:
        at = random.random() * sum(share.weight for share in self.shares)
        for share in self.shares:
            at -= share.weight
            if at < 0.0:
                break
        return share.low + int(random.random() * (share.high - share.low + 1))

    @property
    def mean(self) -> float:
        weight = sum(share.weight for share in self.shares)
        return sum(share.weight * (share.low + share.high) / 2.0 for share in self.shares) / weight


@dataclass(frozen=True, slots=True)
class TenantPlan:
    """One tenant. The starts and ends of `processes` decide whether they overlap.

    `requests_max`: the processes stop after so many requests, but the last interaction is always complete.
    `system_tokens`: part of the input; the whole input if that is shorter.
    """

    name: str
    processes: tuple[TimedArrivals, ...]
    lengths: SampledLengths
    weight: float = 1.0
    tier: str | None = None
    slo_ttft_ms: float | None = None
    app: str | None = None
    model: str | None = None
    slo_class: str | None = None
    system_tokens: int = 0
    requests_max: int | None = None
    interactions: InteractionArrivals | None = None

    @property
    def expected(self) -> float:
        """The average number of requests without `requests_max`."""
        calls = 1.0 if self.interactions is None else self.interactions.mean
        return calls * sum(process.expected for process in self.processes)

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        random = self._random(seed, "lengths")
        numbered = self.interactions is not None
        for at_s, interaction, stage in self.calls(seed):
            input_tokens, output_tokens = self.lengths.draw(random)
            yield Arrival(
                at_s,
                self.name,
                input_tokens,
                output_tokens,
                f"i{interaction}" if numbered else None,
                stage if numbered else None,
                self.app,
                self.model,
                self.tier,
                self.slo_ttft_ms,
                min(self.system_tokens, input_tokens),
                self.slo_class,
            )

    def calls(self, seed: int) -> Iterator[Call]:
        """Yield calls in order of time; calls of the same time in the order in which their interactions began."""
        starts = enumerate(self._starts(seed))
        if self.interactions is None:
            singles = ((at_s, number, 0) for number, at_s in starts)
            yield from singles if self.requests_max is None else _first(singles, self.requests_max)
            return
        random, made, later = self._random(seed, "interactions"), 0, list[Call]()
        for number, at_s in starts:
            while later and later[0][0] <= at_s:
                yield heappop(later)
            if self.requests_max is not None and made >= self.requests_max:
                break
            calls = self.interactions.calls(random)
            made += calls
            yield at_s, number, 0
            for stage in range(1, calls):
                heappush(later, (at_s + stage * self.interactions.think_s, number, stage))
        while later:
            yield heappop(later)

    def _starts(self, seed: int) -> Iterator[float]:
        randoms = (self._random(seed, f"times {number}") for number in range(len(self.processes)))
        return merge(*(process.times(random) for process, random in zip(self.processes, randoms, strict=True)))

    def _random(self, seed: int, what: str) -> Random:
        return Random(f"{seed} {what} of {self.name}")


def _first(calls: Iterator[Call], most: int) -> Iterator[Call]:
    for _, call in zip(range(most), calls, strict=False):
        yield call


@dataclass(frozen=True)
class PlannedWorkload:
    """A headgate.workloads.sources.Workload. No interaction begins at or after `duration_s`.

    Raises WorkloadError if the plans make no request, or more than REQUESTS_MAX.
    """

    name: str
    plans: tuple[TenantPlan, ...]
    duration_s: float
    seed: int = 0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self._extent[0]:
            raise WorkloadError(f"{self.name}: makes no request within {self.duration_s:g} s (seed {self.seed})")

    def with_seed(self, seed: int) -> PlannedWorkload:
        return replace(self, seed=seed)

    @property
    def requests(self) -> int:
        return self._extent[0]

    @property
    def last_arrival_s(self) -> float:
        return self._extent[1]

    @cached_property
    def _extent(self) -> tuple[int, float]:
        requests, last_s = 0, 0.0
        for plan in self.plans:
            for at_s, _, _ in plan.calls(self.seed):
                requests += 1
                last_s = max(last_s, at_s)
                if requests > REQUESTS_MAX:
                    raise WorkloadError(f"{self.name}: makes more than {REQUESTS_MAX} requests")
        return requests, last_s

    @property
    def tenants(self) -> tuple[str, ...]:
        return tuple(plan.name for plan in self.plans)

    @cached_property
    def weights(self) -> Mapping[str, float]:
        return {plan.name: plan.weight for plan in self.plans}

    @cached_property
    def tiers(self) -> Mapping[str, str]:
        return {plan.name: plan.tier for plan in self.plans if plan.tier is not None}

    def __iter__(self) -> Iterator[Arrival]:
        return merge(*(plan.arrivals(self.seed) for plan in self.plans), key=attrgetter("arrival_s"))
