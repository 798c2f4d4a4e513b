"""What is known of one model, of all models together, and of a tenant's calls of a model (record.py). All of it is
bounded.

- A `Pace`: service, and seconds in their slots, of the calls that had waited. They ran in full batches, so the quotient
  is the capacity that a waiting call sees. It is of whole calls, so that it has no edges: a model that is swapped has
  few batches at a time, and the service of the first is seen at its end only. (The workers' own measurement,
  gpu_worker, is the highest rate, which is too high for a prediction.) Old calls count less: at PACE_ENDS all sums are
  halved.
- `Costs`: mean and variance of the true service of calls; of a model also of their outputs alone, because a batch that
  begins together computes its prompts first (policies/waiting.py).
- `Ratios` of actual over predicted waits (policies/planning/wait_ratios.py), for each `Phase`, and the `Coverage` of
  what was announced (policies/planning/coverage.py).
- For a model that is swapped: how long it was absent while calls waited, and how long it stayed; how long drains took,
  beside what was expected.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from math import exp, sqrt

from dispatcher.policies.planning.coverage import Coverage
from dispatcher.policies.planning.wait_ratios import Quantiles, RatioQuantiles, WaitRatios
from dispatcher.policies.waiting import residual

PACE_ENDS = 1000
"""At so many ends all sums of a pace are halved: it remembers some 750 calls."""
SATURATED_MIN_S = 5.0
ENDS_MIN = 20
"""A pace is unknown until so much time has passed in which calls waited, and so many calls have ended in it. Only a
known pace refuses a deadline."""
MEMORY = 200
"""The number of ends that mean and variance of a tenant's costs effectively remember."""
COSTS_MIN = 5
"""With fewer ends of its own, a tenant has the model's mean cost."""
FORECAST_S = 120.0
"""What the last two minutes brought, the next two bring again: the time constant of recent arrivals, and the end of
their forecast. Chosen on measured `vtc` runs of one A10G (60 and 240 s gave lower R²), so they are no test of it."""
PRIOR_ENDS = 2.0
"""The calls as which the prior of a pace counts."""
ABSENCES_MOST = 12
LOADS_MOST = 12
MEAN_MEMORY = 10
_QUANTILE_KEPT_S = 0.2
_RECENT_LEAST = 0.05
"""Fewer recent arrivals than this count as none."""


class Phase(IntEnum):
    """What a queue waits for. Errors of predictions are learned for each apart."""

    NEAR = 0
    """The model has slots, and few ends come before the call's dispatch."""
    FAR = 1
    """The model has slots."""
    ORDERED = 2
    """A worker is ordered to load the model, or loads it."""
    MISSING = 3
    """No worker has the model or loads it for new calls."""
    DEFERRED = 4
    """Deferred calls wait until others leave capacity, or until they become due."""


@dataclass(slots=True)
class Ratios:
    """Observed ratios, with their quantiles, which are computed at most every _QUANTILE_KEPT_S seconds."""

    observed: WaitRatios = field(default_factory=WaitRatios)
    _own: RatioQuantiles | None = None
    _until: float = 0.0
    _prior: Quantiles | None = None
    _completed: Quantiles | None = None
    """The last result, for the same prior: most often it is the very same object."""

    def quantiles(self, now: float, prior: Quantiles) -> Quantiles:
        own = self._present(now)
        if self._completed is None or prior is not self._prior:
            self._prior, self._completed = prior, own.with_prior(prior)
        return self._completed

    def p10(self, now: float, prior: float) -> float:
        """Return the 0.1 quantile by the number of requests."""
        return self._present(now).p10_with_prior(prior)

    def _present(self, now: float) -> RatioQuantiles:
        own = self._own
        if own is None or now >= self._until:
            own = self._own = self.observed.quantiles(now)
            self._until, self._completed = now + _QUANTILE_KEPT_S, None
        return own


RatiosOfPhases = dict[Phase, Ratios]


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
    ratios: RatiosOfPhases | None = None
    """None until one of its calls waits."""
    coverage: dict[Phase, Coverage] = field(default_factory=dict)

    @property
    def own_mean(self) -> float:
        """The mean service of the tenant's calls; 0 while too few have ended."""
        return self.mean if self.ends >= COSTS_MIN else 0.0

    def fade(self, now: float) -> None:
        self.recent *= exp(-max(0.0, now - self.faded_at) / FORECAST_S)
        self.faded_at = now
        if self.recent < _RECENT_LEAST:
            self.recent = 0.0

    @property
    def residual(self) -> float:
        """The expected rest of a call that is seen running at a random time (policies/waiting.py)."""
        return residual(self.mean, self.variance)

    def on_ended(self, served: float) -> None:
        self.ends = min(self.ends + 1, MEMORY)
        error = served - self.mean
        self.mean += error / self.ends
        self.variance += (error * (served - self.mean) - self.variance) / self.ends


@dataclass(slots=True)
class Pace:
    """A model's service and ends of the calls that had waited.

    `saturated_s`: the seconds in which calls waited for it and it had slots."""

    saturated_s: float = 0.0
    slot_s: float = 0.0
    """The sum of the seconds from the calls' dispatches to their ends."""
    served: float = 0.0
    ends: float = 0.0

    @property
    def is_known(self) -> bool:
        return self.saturated_s >= SATURATED_MIN_S and self.ends >= ENDS_MIN and self.served > 0

    def pass_seconds(self, seconds: float) -> None:
        self.saturated_s += seconds

    @property
    def own_slot_per_s(self) -> float:
        """The service per second of one slot without a prior; 0 while it is unknown."""
        return self.served / self.slot_s if self.slot_s > 0 else 0.0

    def slot_per_s(self, prior: float, running: int = 0) -> float:
        """Return the service per second of one slot. `prior`: what it is without a measurement, above 0. `running`: the
        calls that run now. While fewer have ended, they stand for the prior: the first ends are those of the shortest
        calls, and the service of these is mostly their prompts."""
        if not self.served or not self.slot_s:
            return prior
        like_prior = max(PRIOR_ENDS, running - self.ends) * self.served / self.ends
        return (self.served + like_prior) / (self.slot_s + like_prior / prior)


@dataclass(slots=True)
class Mean:
    """A mean that remembers some MEAN_MEMORY observations."""

    count: int = 0
    value: float = 0.0

    def observe(self, value: float) -> None:
        self.count = min(self.count + 1, MEAN_MEMORY)
        self.value += (value - self.value) / self.count

    def with_prior(self, prior: float) -> float:
        """Return the mean of the observations and of the prior as one more."""
        return (self.count * self.value + prior) / (self.count + 1)


@dataclass(slots=True)
class ModelWaits:
    """What is known of one model, or of all models together."""

    pace: Pace = field(default_factory=Pace)
    costs: Costs = field(default_factory=lambda: Costs())
    """The costs of the calls of all tenants."""
    outputs: Costs = field(default_factory=lambda: Costs())
    """The service of the outputs of these calls, without their prompts."""
    slots: int = 0
    """The slots of the last worker that had the model while calls waited for it."""
    full_slot_per_s: float = 0.0
    """The service per second of a slot of a full worker, as the workers with the model report it; 0 while unknown."""
    lasted_s: float = 0.0
    """The mean time from a call's dispatch to its end."""
    ratios: RatiosOfPhases = field(default_factory=dict)
    coverage: dict[Phase, Coverage] = field(default_factory=dict)
    absences_s: deque[float] = field(default_factory=lambda: deque(maxlen=ABSENCES_MOST))
    """How long calls waited until a worker had the model."""
    stay_s: Mean = field(default_factory=Mean)
    """How long workers had the model until it was swapped out while calls waited for it."""
    alone: Pace = field(default_factory=Pace)
    """The pace of the calls that had not waited. They ran among fewer others."""
    slowdown: Mean = field(default_factory=Mean)
    """The pace of calls that had waited, divided by that of others. It is kept for all models together."""
    drain_ratio: Mean = field(default_factory=Mean)
    """Actual over expected seconds in which workers with running calls drained."""
    late_s: deque[float] = field(default_factory=lambda: deque(maxlen=LOADS_MOST))
    """How much longer than its worker says it took until a model was there, without the drain: a worker learns of its
    order with a heartbeat, and tells of its model with another one."""

    def on_ended(self, served: float, outputs: float, lasted_s: float) -> None:
        self.costs.on_ended(served)
        self.outputs.on_ended(outputs)
        self.lasted_s += (lasted_s - self.lasted_s) / self.costs.ends

    @property
    def prompts(self) -> float:
        """The part of the calls' service that is of prompts; 0 for calls without output, which end one by one."""
        return max(0.0, 1.0 - self.outputs.mean / self.costs.mean) if self.outputs.mean > 0 else 0.0

    @property
    def variation(self) -> float:
        """The standard deviation of the calls' outputs over their mean; for calls without output of their service."""
        known = self.outputs if self.outputs.mean > 0 else self.costs
        return sqrt(known.variance) / known.mean if known.mean > 0 else 0.0

    @property
    def slot_per_s(self) -> float:
        """The service per second of a slot in use; 0 while it is unknown."""
        return self.costs.mean / self.lasted_s if self.lasted_s > 0 else 0.0

    @property
    def rest_s(self) -> float:
        """The expected seconds that a running call still runs; 0 while unknown."""
        return self.lasted_s * self.costs.residual / self.costs.mean if self.costs.mean > 0 else 0.0

    @property
    def absence_s(self) -> float:
        """The mean absence; 0 without any."""
        return sum(self.absences_s) / len(self.absences_s) if self.absences_s else 0.0
