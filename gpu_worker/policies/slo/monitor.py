"""Whether each tier gets what it was promised: first tokens, the pace of tokens, and ends, over a rolling window.

Source: the practitioner's design for tiered preemption, sections 3.1 and 3.2. Of a request that arrived at a, had its
first token at f and its last, the n-th, at e, seconds of any clock that does not go back:

    TTFT = f - a          TPOT = (e - f) / (n - 1), n > 1          E2E = e - a

    attainment of a tier and kind = samples within the target / (samples + overdue)

over the samples of the last `window_s` seconds. *Overdue*: requests whose first token has not come and whose TTFT
target has passed; requests that have not ended and whose E2E target has passed. A tier is *at risk* where TTFT or TPOT
has enough samples and its attainment is below the goal.

Invariants: at most one sample a request and kind; a request is overdue or sampled, never both; memory is bounded by
samples_max a tier and kind and the requests that are open. Each call is O(1) amortized, but for percentiles and for
what is asked of a part of the window.

Deviations: the source records running requests anew on every iteration, so long ones dominate, and looks at the last
200 such records, however old or young. It samples what has begun, so an engine that starts nothing looks healthy: here
overdue requests are misses already. A request that leaves unserved, its client gone or its deadline past, is a miss of
what it had waited beyond, and else no sample at all: it says nothing. The source takes a tier for at risk by its 99th
percentile; attainment below 0.99 is the same, and says by how much. E2E is measured and counts for no risk, as in the
source: how long an answer takes is for the most part how long an answer was asked for.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from types import MappingProxyType

from dispatcher.policies.percentiles import percentile
from dispatcher.policies.tiers import Tier


class Slo(StrEnum):
    TTFT = "ttft"
    TPOT = "tpot"
    E2E = "e2e"


@dataclass(frozen=True, slots=True)
class SloTargets:
    """Seconds, of one tier; infinity: none. Raises ValueError for what is not above 0."""

    ttft_s: float = inf
    tpot_s: float = inf
    e2e_s: float = inf

    def __post_init__(self) -> None:
        for kind in Slo:
            if not self.of(kind) > 0:
                raise ValueError(f"a target must be above 0 s, not {self.of(kind)!r} for {kind}")

    def of(self, kind: Slo) -> float:
        return {Slo.TTFT: self.ttft_s, Slo.TPOT: self.tpot_s, Slo.E2E: self.e2e_s}[kind]


TARGETS: Mapping[Tier, SloTargets] = MappingProxyType(
    {
        Tier.PREMIUM: SloTargets(0.200, 0.030, 5.0),
        Tier.STANDARD: SloTargets(0.500, 0.080, 15.0),
        Tier.BACKGROUND: SloTargets(e2e_s=60.0),
    }
)
"""The source's, section 3.1."""
AT_RISK_BY = (Slo.TTFT, Slo.TPOT)


@dataclass(frozen=True, slots=True)
class SloSettings:
    """`targets`: by tier; one that is not named has none. `window_s`: seconds that are looked back on. `samples_max`:
    kept of a tier and kind, the youngest. `goal`: attainment below which a tier is at risk, 0 to 1, given at least
    `samples_min` samples and `misses_min` misses: one late request in a quiet hour is no trend.

    Raises ValueError for what cannot be.
    """

    targets: Mapping[Tier, SloTargets] = field(default_factory=lambda: TARGETS)
    window_s: float = 60.0
    samples_max: int = 10_000
    goal: float = 0.99
    samples_min: int = 20
    misses_min: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.window_s < inf:
            raise ValueError(f"window_s must be a positive number, not {self.window_s!r}")
        if not 0 <= self.goal <= 1:
            raise ValueError(f"goal must be between 0 and 1, not {self.goal!r}")
        for name in ("samples_max", "samples_min", "misses_min"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")

    def target(self, tier: Tier, kind: Slo) -> float:
        """Seconds; infinity where there is none."""
        return self.targets[tier].of(kind) if tier in self.targets else inf


@dataclass(frozen=True, slots=True)
class Attainment:
    """Of `samples`, the overdue included, so many were `met`."""

    met: int = 0
    samples: int = 0

    @property
    def share(self) -> float:
        """0 to 1; 1 where nothing was asked for."""
        return self.met / self.samples if self.samples else 1.0

    @property
    def missed(self) -> int:
        return self.samples - self.met


class _Samples:
    """Of one tier and kind: when each was taken, and how long it was."""

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
            self._drop()

    def within(self, now_s: float, since_s: float = -inf) -> Attainment:
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
            self._drop()

    def _drop(self) -> None:
        _, seconds = self._taken.popleft()
        self._met -= seconds <= self._target_s


class _Awaited:
    """Open requests of one tier for which something has not come yet, and which of them are past its target. They
    arrive in order of time, and have one target: so they become overdue in that order."""

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._in_time: OrderedDict[str, float] = OrderedDict()
        self._overdue: set[str] = set()

    def begins(self, request_id: str, now_s: float) -> None:
        self._in_time[request_id] = now_s

    def ends(self, request_id: str) -> None:
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
    """Told of every request by its id, whichever engine serves it; an id that is not known is passed over."""

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

    def arrived(self, request_id: str, tier: Tier, now_s: float) -> None:
        self._open[request_id] = _Open(tier, now_s)
        for kind in (Slo.TTFT, Slo.E2E):
            self._awaited[tier, kind].begins(request_id, now_s)

    def first_token(self, request_id: str, now_s: float) -> None:
        """Of what is told again, the first counts."""
        request = self._open.get(request_id)
        if request is not None and request.first_s is None:
            request.first_s = now_s
            self._awaited[request.tier, Slo.TTFT].ends(request_id)
            self._sample(request, Slo.TTFT, now_s, now_s - request.arrived_s)

    def ended(self, request_id: str, now_s: float, output_tokens: int) -> None:
        """It was served to its end."""
        request = self._closed(request_id)
        if request is None:
            return
        self._sample(request, Slo.E2E, now_s, now_s - request.arrived_s)
        if request.first_s is not None and output_tokens > 1:
            self._sample(request, Slo.TPOT, now_s, (now_s - request.first_s) / (output_tokens - 1))

    def abandoned(self, request_id: str, now_s: float) -> None:
        """It was not: aborted, refused or dropped."""
        request = self._closed(request_id)
        if request is None:
            return
        waited_s = now_s - request.arrived_s
        for kind in (Slo.TTFT, Slo.E2E):
            awaited = kind is Slo.E2E or request.first_s is None
            if awaited and waited_s > self.settings.target(request.tier, kind):
                self._sample(request, kind, now_s, waited_s)

    def attainment(self, tier: Tier, kind: Slo, now_s: float, since_s: float = -inf) -> Attainment:
        """Over the window, or what of it is not before `since_s`; whoever is overdue counts in either case."""
        found = self._samples[tier, kind].within(now_s, since_s)
        awaited = self._awaited.get((tier, kind))
        return Attainment(found.met, found.samples + (awaited.overdue(now_s) if awaited is not None else 0))

    def at_risk(self, tier: Tier, now_s: float, since_s: float = -inf) -> bool:
        return any(self._missed(self.attainment(tier, kind, now_s, since_s)) for kind in AT_RISK_BY)

    def percentile_s(self, tier: Tier, kind: Slo, now_s: float, fraction: float) -> float | None:
        """Return the percentile of the window's samples, without those overdue; None if there are none."""
        return percentile(self._samples[tier, kind].seconds(now_s), fraction)

    def _missed(self, attained: Attainment) -> bool:
        settings = self.settings
        enough = attained.samples >= settings.samples_min and attained.missed >= settings.misses_min
        return enough and attained.share < settings.goal

    def _closed(self, request_id: str) -> _Open | None:
        request = self._open.pop(request_id, None)
        if request is not None:
            for kind in (Slo.TTFT, Slo.E2E):
                self._awaited[request.tier, kind].ends(request_id)
        return request

    def _sample(self, request: _Open, kind: Slo, now_s: float, seconds: float) -> None:
        self._samples[request.tier, kind].add(now_s, seconds)
