"""Service-level objectives by tier: time to first token, time per output token and end-to-end time in a rolling window.

Source: docs/preemption-design.md, sections 3.1 and 3.2. For a request with arrival a, first token f, last token e and
n tokens, in seconds on any clock that never goes back:

    TTFT = f - a          TPOT = (e - f) / (n - 1), n > 1          E2E = e - a

    attainment of a tier and kind = samples within the target / (samples + overdue)

over the samples of the last `window_s` seconds. A request is *overdue* for TTFT if its first token is missing after
the TTFT target, and for E2E if it has not ended after the E2E target. A tier is *at risk* if TTFT or TPOT has enough
samples and an attainment below the goal.

Invariants: at most one sample for each request and kind; a request is overdue or sampled, never both; memory is bounded
by samples_max for each tier and kind, plus the open requests. Each call is O(1) amortized, except percentiles and
queries for a part of the window.

Deviations:
- The source records running requests again in every iteration, so long requests dominate, and uses the last 200 records
  whatever their age.
- The source samples only requests that have begun, so an engine that starts nothing looks healthy. Here overdue
  requests already count as missed.
- A request that leaves unserved (its client disconnected, or its deadline passed) counts as missed for each target that
  its wait exceeded. Otherwise it is no sample, because it shows nothing.
- The source judges the risk of a tier by its 99th percentile. Attainment below 0.99 is the same test, and also shows
  how many requests missed.
- E2E is measured but never puts a tier at risk, as in the source: it mostly depends on the requested length.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from types import MappingProxyType
from typing import Annotated

from dispatcher.policies.bounds import BoundedSettings, Bounds, Part
from dispatcher.policies.percentiles import percentile
from dispatcher.policies.tiers import TenantTier, Tier

_Target = Annotated[float, Bounds(above=0, is_finite=False)]
_Count = Annotated[int, Bounds(1)]


class Slo(StrEnum):
    TTFT = "ttft"
    TPOT = "tpot"
    E2E = "e2e"


@dataclass(frozen=True, slots=True)
class SloTargets(BoundedSettings):
    """Targets of one tier in seconds; infinity means no target. Raises ValueError for a target that is not above 0."""

    ttft_s: _Target = inf
    tpot_s: _Target = inf
    e2e_s: _Target = inf

    def of(self, kind: Slo) -> float:
        return {Slo.TTFT: self.ttft_s, Slo.TPOT: self.tpot_s, Slo.E2E: self.e2e_s}[kind]


TARGETS: Mapping[Tier, SloTargets] = MappingProxyType(
    {
        Tier.PREMIUM: SloTargets(0.200, 0.030, 5.0),
        Tier.STANDARD: SloTargets(0.500, 0.080, 15.0),
        Tier.BACKGROUND: SloTargets(e2e_s=60.0),
    }
)
"""The source's targets, section 3.1."""

_AT_RISK_BY = (Slo.TTFT, Slo.TPOT)


@dataclass(frozen=True, slots=True)
class SloSettings(BoundedSettings):
    """`targets`: by tier; a tier that is missing has none. `window_s`: length of the rolling window. `samples_max`: how
    many of the latest samples are kept for each tier and kind. `goal`: a tier is at risk below this attainment, 0 to 1,
    if there are at least `samples_min` samples and `misses_min` misses: one late request in a quiet hour is no trend.

    Raises ValueError for an impossible value.
    """

    targets: Mapping[TenantTier, SloTargets] = field(default_factory=lambda: TARGETS)
    window_s: Annotated[float, Bounds(above=0)] = 60.0
    samples_max: Annotated[int, Bounds(1, 1_000_000)] = 10_000
    goal: Part = 0.99
    samples_min: _Count = 20
    misses_min: _Count = 2

    def target(self, tier: Tier, kind: Slo) -> float:
        """Return the target in seconds; infinity if there is none."""
        return self.targets[tier].of(kind) if tier in self.targets else inf


@dataclass(frozen=True, slots=True)
class Attainment:
    """`met` of `samples` were within the target; overdue requests are included in `samples`."""

    met: int = 0
    samples: int = 0

    @property
    def share(self) -> float:
        """The attainment, 0 to 1; 1 without samples."""
        return self.met / self.samples if self.samples else 1.0

    @property
    def missed(self) -> int:
        return self.samples - self.met


class _Samples:
    """The samples of one tier and kind, with their times."""

    def __init__(self, target_s: float, window_s: float, samples_max: int) -> None:
        self._target_s = target_s
        self._window_s = window_s
        self._samples_max = samples_max
        self._taken: deque[tuple[float, float]] = deque()
        self._met = 0

    def add(self, now_s: float, seconds: float) -> None:
        self._taken.append((now_s, seconds))
        self._met += seconds <= self._target_s
        if len(self._taken) > self._samples_max:
            self._drop_oldest()

    def attainment(self, now_s: float, since_s: float = -inf) -> Attainment:
        self._forget(now_s)
        if not self._taken or since_s <= self._taken[0][0]:
            return Attainment(self._met, len(self._taken))
        recent = [seconds for taken_s, seconds in self._taken if taken_s >= since_s]
        return Attainment(sum(seconds <= self._target_s for seconds in recent), len(recent))

    def seconds(self, now_s: float) -> list[float]:
        self._forget(now_s)
        return sorted(seconds for _, seconds in self._taken)

    def _forget(self, now_s: float) -> None:
        while self._taken and self._taken[0][0] <= now_s - self._window_s:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, seconds = self._taken.popleft()
        self._met -= seconds <= self._target_s


class _Awaited:
    """Open requests of one tier that wait for one event, such as the first token, and those of them that are overdue.

    Requests arrive in the order of time and have the same target, so they become overdue in the order of arrival.
    """

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._in_time: OrderedDict[str, float] = OrderedDict()
        self._overdue: set[str] = set()

    def add(self, request_id: str, now_s: float) -> None:
        self._in_time[request_id] = now_s

    def remove(self, request_id: str) -> None:
        self._in_time.pop(request_id, None)
        self._overdue.discard(request_id)

    def overdue(self, now_s: float) -> int:
        while self._in_time:
            request_id, arrived_s = next(iter(self._in_time.items()))
            if now_s - arrived_s <= self._target_s:
                break
            del self._in_time[request_id]
            self._overdue.add(request_id)
        return len(self._overdue)


@dataclass(slots=True, eq=False)
class _Open:
    tier: Tier
    arrived_s: float
    first_s: float | None = None


class SloMonitor:
    """Receives the events of every request by id, from any engine. Events of unknown requests are ignored."""

    def __init__(self, settings: SloSettings | None = None) -> None:
        self.settings = settings = settings or SloSettings()
        self._open: dict[str, _Open] = {}
        self._samples = {
            (tier, kind): _Samples(settings.target(tier, kind), settings.window_s, settings.samples_max)
            for tier in Tier
            for kind in Slo
        }
        self._awaited = {
            (tier, kind): _Awaited(settings.target(tier, kind)) for tier in Tier for kind in (Slo.TTFT, Slo.E2E)
        }

    def on_arrived(self, request_id: str, tier: Tier, now_s: float) -> None:
        self._open[request_id] = _Open(tier, now_s)
        for kind in (Slo.TTFT, Slo.E2E):
            self._awaited[tier, kind].add(request_id, now_s)

    def first_token(self, request_id: str, now_s: float) -> None:
        """Record the first token. Only the first call for a request counts."""
        request = self._open.get(request_id)
        if request is not None and request.first_s is None:
            request.first_s = now_s
            self._awaited[request.tier, Slo.TTFT].remove(request_id)
            self._sample(request, Slo.TTFT, now_s, now_s - request.arrived_s)

    def on_ended(self, request_id: str, now_s: float, output_tokens: int) -> None:
        """Record the end of a request that was served completely."""
        request = self._close(request_id)
        if request is None:
            return
        self._sample(request, Slo.E2E, now_s, now_s - request.arrived_s)
        if request.first_s is not None and output_tokens > 1:
            self._sample(request, Slo.TPOT, now_s, (now_s - request.first_s) / (output_tokens - 1))

    def on_abandoned(self, request_id: str, now_s: float) -> None:
        """Record the end of a request that was aborted, refused or dropped."""
        request = self._close(request_id)
        if request is None:
            return
        waited_s = now_s - request.arrived_s
        for kind in (Slo.TTFT, Slo.E2E):
            awaited = kind is Slo.E2E or request.first_s is None
            if awaited and waited_s > self.settings.target(request.tier, kind):
                self._sample(request, kind, now_s, waited_s)

    def attainment(self, tier: Tier, kind: Slo, now_s: float, since_s: float = -inf) -> Attainment:
        """Return the attainment in the window, or in its part from `since_s` on. Overdue requests count in both
        cases."""
        found = self._samples[tier, kind].attainment(now_s, since_s)
        awaited = self._awaited.get((tier, kind))
        return Attainment(found.met, found.samples + (awaited.overdue(now_s) if awaited is not None else 0))

    def at_risk(self, tier: Tier, now_s: float, since_s: float = -inf) -> bool:
        return any(self._misses_goal(self.attainment(tier, kind, now_s, since_s)) for kind in _AT_RISK_BY)

    def percentile_s(self, tier: Tier, kind: Slo, now_s: float, fraction: float) -> float | None:
        """Return a percentile of the samples in the window; None without samples. Overdue requests are not included."""
        return percentile(self._samples[tier, kind].seconds(now_s), fraction)

    def _misses_goal(self, attainment: Attainment) -> bool:
        settings = self.settings
        enough = attainment.samples >= settings.samples_min and attainment.missed >= settings.misses_min
        return enough and attainment.share < settings.goal

    def _close(self, request_id: str) -> _Open | None:
        request = self._open.pop(request_id, None)
        if request is not None:
            for kind in (Slo.TTFT, Slo.E2E):
                self._awaited[request.tier, kind].remove(request_id)
        return request

    def _sample(self, request: _Open, kind: Slo, now_s: float, seconds: float) -> None:
        self._samples[request.tier, kind].add(now_s, seconds)
