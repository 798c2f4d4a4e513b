"""What a shard remembers of service and waiting times, to announce waiting times (estimate.py).

It follows from the facts in the order in which they are confirmed or folded, but it is not in the log: a copy that
began with a snapshot knows less than others, and no fact depends on it. All of it is bounded.

- A `Pace` for each model: service and ends while calls wait for it, so while its batch is full. The mean over this time
  is the capacity that a waiting call sees. (The workers' own measurement, gpu_worker, is the highest rate, which is too
  high for a prediction.) Old time counts less: after WINDOW_S seconds all sums are halved.
- A `Costs` for each tenant and model: mean and variance of the true service of its calls.
- The ratios of actual over predicted waits (policies/planning/wait_ratios.py) of each model and of each tenant of it,
  from at most FOLLOWED_MAX waiting calls of a tenant at a time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import exp

from dispatcher.policies.orders.queues import Call
from dispatcher.policies.planning.wait_ratios import RATIO_MIN, WaitRatios
from dispatcher.shard.waits.backlogs import Backlogs

FORECAST_S = 120.0
"""What the last two minutes brought, the next two bring again: the time constant of recent arrivals, and the end of
their forecast. Chosen on measured `vtc` runs of one A10G (60 and 240 s gave lower R²), so they are no test of it."""
WINDOW_S = 600.0
SATURATED_MIN_S = 5.0
ENDS_MIN = 20
"""A pace is unknown until so much time has passed in which calls waited, and so many calls have ended in it."""
MEMORY = 200
"""The number of ends that mean and variance of a tenant's costs effectively remember."""
COSTS_MIN = 5
"""With fewer ends of its own, a tenant has the model's mean cost."""
OBSERVATIONS_MIN = 20
"""With fewer observed waits of its own, a tenant has the model's quantile."""
FOLLOWED_MAX = 32
COSTS_MAX = 2_000
"""Tenants and models with costs and ratios of their own. The one that was added first is forgotten first."""
PACES_MAX = 1_000
_QUANTILE_KEPT_S = 0.2
_FADE_EVERY_S = 5.0
"""A tenant's recent arrivals fade at most this often, so its forecast is too high by at most 4.3 %."""
_FADES_MAX = 8
"""The arrivals of at most this many tenants fade with one entry. With many tenants and few entries they fade later."""
_RECENT_LEAST = 0.05
"""Fewer recent arrivals than this count as none."""


@dataclass(slots=True)
class Ratios:
    """Observed ratios, with their 0.9 quantile. The quantile is computed at most every _QUANTILE_KEPT_S seconds."""

    observed: WaitRatios = field(default_factory=WaitRatios)
    _quantile: float = RATIO_MIN
    _until: float = 0.0

    def quantile(self, now: float) -> float:
        if now >= self._until:
            self._quantile, self._until = max(RATIO_MIN, self.observed.quantile(now)), now + _QUANTILE_KEPT_S
        return self._quantile


@dataclass(slots=True)
class Pace:
    """A model's service and ends in the seconds in which calls waited for it."""

    saturated_s: float = 0.0
    served: float = 0.0
    ends: float = 0.0
    ratios: Ratios = field(default_factory=Ratios)

    @property
    def is_known(self) -> bool:
        return self.saturated_s >= SATURATED_MIN_S and self.ends >= ENDS_MIN and self.served > 0

    @property
    def per_s(self) -> float:
        return self.served / self.saturated_s

    @property
    def mean_cost(self) -> float:
        return self.served / self.ends

    def passed(self, seconds: float) -> None:
        self.saturated_s += seconds
        if self.saturated_s > WINDOW_S:
            self.saturated_s, self.served, self.ends = self.saturated_s / 2, self.served / 2, self.ends / 2


@dataclass(slots=True)
class Costs:
    """The true service of one tenant's calls of one model."""

    ends: int = 0
    mean: float = 0.0
    variance: float = 0.0
    recent: float = 0.0
    """Arrivals of the recent past; older ones are faded out."""
    faded_at: float = 0.0
    """When `recent` faded last, in Unix seconds."""
    ratios: Ratios | None = None
    """None until one of its calls waits."""

    @property
    def own_mean(self) -> float:
        """The mean service of the tenant's calls; 0 while too few have ended."""
        return self.mean if self.ends >= COSTS_MIN else 0.0

    def fade(self, now: float) -> None:
        self.recent *= exp(-max(0.0, now - self.faded_at) / FORECAST_S)
        self.faded_at = now
        if self.recent < _RECENT_LEAST:
            self.recent = 0.0

    def on_ended(self, served: float) -> None:
        self.ends = min(self.ends + 1, MEMORY)
        error = served - self.mean
        self.mean += error / self.ends
        self.variance += (error * (served - self.mean) - self.variance) / self.ends


class WaitRecord:
    def __init__(self) -> None:
        self.ended: list[tuple[Call, float]] = []
        """The calls that ended in the entry that is being applied, each with its true service."""
        self.paces: dict[str, Pace] = {}
        self.costs: dict[tuple[str, str], Costs] = {}
        """The costs by tenant and model."""
        self.forecast: dict[str, set[str]] = {}
        """The models of which each tenant has recent arrivals. Tenants without any are absent."""
        self.backlogs = Backlogs()
        """What waits for each model; `changed` is not in it yet (backlogs.py)."""
        self.is_summed = False
        """Whether `backlogs` was brought up to date for the present entry."""
        self.changed: set[str] = set()
        """The tenants with queues, shares, costs or forecasts that are not in `backlogs` yet."""
        self._fading: deque[tuple[float, tuple[str, str]]] = deque()
        """When the costs with recent arrivals are to fade (Unix seconds), in that order, with tenant and model."""
        self.saturated: dict[str, Pace] = {}
        """The paces of the models that calls wait for since the last entry, and that a worker has."""
        self.ends_from = self.arrivals_from = 0.0
        """Before these times no other end or arrival is sampled."""
        self._arrivals = 0
        self.follow_from = 0.0
        """Before this time no other call is followed."""
        self.followed: dict[str, tuple[Ratios, Ratios]] = {}
        """The ratios of its tenant and of its model, for each waiting call that is followed."""

    def saturate(self, models: list[str]) -> None:
        """Remember the models that calls wait for from here on."""
        if [*self.saturated] != models:
            self.saturated = {model: self._pace(model) for model in models}

    def count_ends(self, *, is_sampled: bool) -> None:
        """Count the ends of this entry; with `is_sampled` the last of them for its tenant too."""
        for call, served in self.ended:
            if (pace := self.saturated.get(call.model)) is not None:
                pace.served += served
                pace.ends += 1.0
        if is_sampled:
            call, served = self.ended[-1]
            self._costs(call.tenant.name, call.model).on_ended(served)
            self.changed.add(call.tenant.name)
        self.ended.clear()

    def on_arrived(self, tenant: str, model: str, arrivals: int, now: float) -> None:
        """Count all arrivals since the last sampled one for the tenant. `arrivals`: their number since the start.
        `now`: Unix seconds."""
        costs = self.costs.get((tenant, model))
        if costs is not None:
            if not costs.recent:
                self._fading.append((now + _FADE_EVERY_S, (tenant, model)))
            costs.fade(now)
            costs.recent += arrivals - self._arrivals
            self.forecast.setdefault(tenant, set()).add(model)
            self.changed.add(tenant)
        self._arrivals = arrivals

    def fade_oldest(self, now: float) -> None:
        """Fade the recent arrivals of the tenants that are due. `now`: Unix seconds."""
        for _ in range(min(_FADES_MAX, len(self._fading))):
            if now < self._fading[0][0]:
                return
            _, name = self._fading.popleft()
            costs = self.costs.get(name)
            if costs is not None and costs.recent:
                costs.fade(now)
                self.changed.add(name[0])
                if costs.recent:
                    self._fading.append((now + _FADE_EVERY_S, name))
                else:
                    self._drop_forecast(*name)

    def _drop_forecast(self, tenant: str, model: str) -> None:
        models = self.forecast.get(tenant, set())
        models.discard(model)
        if not models:
            self.forecast.pop(tenant, None)

    def may_follow(self, call: Call) -> bool:
        """Return whether a waiting call can still be followed."""
        costs = self.costs.get((call.tenant.name, call.model))
        return costs is None or costs.ratios is None or costs.ratios.observed.waiting < FOLLOWED_MAX

    def follow(self, call: Call, predicted_s: float, since: float) -> None:
        """Compare the call's wait from `since` on with the predicted one when it is dispatched."""
        costs = self._costs(call.tenant.name, call.model)
        if costs.ratios is None:
            costs.ratios = Ratios()
        ratios = self.followed[call.id] = costs.ratios, self._pace(call.model).ratios
        for each in ratios:
            each.observed.predicted(call.id, predicted_s, since)

    def on_dispatched(self, call_id: str, now: float) -> None:
        for each in self.followed.pop(call_id, ()):
            each.observed.on_dispatched(call_id, now)

    def on_left(self, call_id: str) -> None:
        """Forget a call that left its queue without a dispatch."""
        for each in self.followed.pop(call_id, ()):
            each.observed.on_left(call_id)

    def quantile(self, costs: Costs | None, pace: Pace, now: float) -> float:
        """Return the 0.9 quantile of actual over predicted waits of the tenant, or of its model."""
        own = costs.ratios if costs is not None else None
        if own is None or len(own.observed) < OBSERVATIONS_MIN:
            own = pace.ratios
        return own.quantile(now)

    def is_observed(self, model: str) -> bool:
        """Return whether enough waits for the model were compared with their predictions."""
        pace = self.paces.get(model)
        return pace is not None and len(pace.ratios.observed) >= OBSERVATIONS_MIN

    def _pace(self, model: str) -> Pace:
        found = self.paces.get(model)
        if found is None:
            if len(self.paces) >= PACES_MAX:
                del self.paces[next(iter(self.paces))]
            found = self.paces[model] = Pace()
        return found

    def _costs(self, tenant: str, model: str) -> Costs:
        found = self.costs.get((tenant, model))
        if found is None:
            if len(self.costs) >= COSTS_MAX:
                oldest = next(iter(self.costs))
                del self.costs[oldest]
                self._drop_forecast(*oldest)
                self.changed.add(oldest[0])
            found = self.costs[tenant, model] = Costs()
        return found
