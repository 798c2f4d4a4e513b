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
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import exp

from dispatcher.policies.orders.queues import Call
from dispatcher.policies.planning.wait_ratios import PRIOR, Quantiles, WaitRatios
from dispatcher.policies.waiting import residual
from dispatcher.shard.state.indexes import Slots
from dispatcher.shard.state.records import Worker
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
FOLLOWED_MAX = 1000
COSTS_MAX = 2_000
"""Tenants and models with costs and ratios of their own. The one that was added first is forgotten first."""
MODELS_MAX = 1_000
PRIOR_S = 5.0
"""The seconds for which the prior of a pace counts."""
ABSENCES_MOST = 12
MEAN_MEMORY = 10
_QUANTILE_KEPT_S = 0.2
_FADE_EVERY_S = 5.0
"""A tenant's recent arrivals fade at most this often, so its forecast is too high by at most 4.3 %."""
_FADES_MAX = 8
"""The arrivals of at most this many tenants fade with one entry. With many tenants and few entries they fade later."""
_RECENT_LEAST = 0.05
"""Fewer recent arrivals than this count as none."""


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
    _quantiles: Quantiles = PRIOR
    _until: float = 0.0

    def quantiles(self, now: float, prior: Quantiles) -> Quantiles:
        if now >= self._until:
            self._quantiles, self._until = self.observed.quantiles(now, prior), now + _QUANTILE_KEPT_S
        return self._quantiles


RatiosOfPhases = dict[Phase, Ratios]


@dataclass(slots=True)
class Pace:
    """A model's service and ends in the seconds in which calls waited for it and it had slots."""

    saturated_s: float = 0.0
    slot_s: float = 0.0
    """The sum of its open slots over these seconds."""
    served: float = 0.0
    ends: float = 0.0

    @property
    def is_known(self) -> bool:
        return self.saturated_s >= SATURATED_MIN_S and self.ends >= ENDS_MIN and self.served > 0

    def passed(self, seconds: float, slots: int) -> None:
        self.saturated_s += seconds
        self.slot_s += seconds * slots
        if self.saturated_s > WINDOW_S:
            self.saturated_s, self.slot_s = self.saturated_s / 2, self.slot_s / 2
            self.served, self.ends = self.served / 2, self.ends / 2

    def slot_per_s(self, prior: float, slots: int) -> float:
        """Return the service per second of one slot. `prior`: what it is without a measurement. `slots`: of now."""
        prior_s = PRIOR_S * slots
        return (self.served + prior * prior_s) / (self.slot_s + prior_s)


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
    """Of the calls of all tenants."""
    slots: int = 0
    """Of the last worker that had the model while calls waited for it."""
    lasted_s: float = 0.0
    """The mean time from a call's dispatch to its end."""
    ratios: RatiosOfPhases = field(default_factory=dict)
    absences_s: deque[float] = field(default_factory=lambda: deque(maxlen=ABSENCES_MOST))
    """How long calls waited until a worker had the model."""
    stay_s: Mean = field(default_factory=Mean)
    """How long workers had the model until it was swapped out while calls waited for it."""
    drain_s: Mean = field(default_factory=Mean)
    """How long workers with running calls drained."""

    def on_ended(self, served: float, lasted_s: float) -> None:
        self.costs.on_ended(served)
        self.lasted_s += (lasted_s - self.lasted_s) / self.costs.ends

    @property
    def slot_per_s(self) -> float:
        """The service per second of a slot in use; 0 while it is unknown."""
        return self.costs.mean / self.lasted_s if self.lasted_s > 0 else 0.0

    @property
    def absence_s(self) -> float:
        """The mean absence; 0 without any."""
        return sum(self.absences_s) / len(self.absences_s) if self.absences_s else 0.0

    def present_s(self, elapsed_s: float, prior: float) -> float:
        """Return the mean rest of an absence that has lasted so long. `prior`: counts as one absence more."""
        longer = [each - elapsed_s for each in self.absences_s if each > elapsed_s]
        return (sum(longer) + prior) / (len(longer) + 1)


@dataclass(slots=True)
class Load:
    """A worker that is ordered to load a model. Unix seconds. `empty_at`: None while calls run on it."""

    model: str
    ordered_at: float
    slots: int
    was_running: bool
    empty_at: float | None = None


class WaitRecord:
    def __init__(self) -> None:
        self.ended: list[tuple[Call, float]] = []
        """The calls that ended in the entry that is being applied, each with its true service."""
        self.models: dict[str, ModelWaits] = {}
        self.all = ModelWaits()
        """Of all models: the prior of each."""
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
        self.present: list[tuple[str, int]] = []
        """The models that calls wait for since the last entry and that have open slots, with their number."""
        self._saturated: dict[str, tuple[Pace, int]] = {}
        self.missing: dict[str, float] = {}
        """The other models that calls wait for, each with the time since when (Unix seconds)."""
        self.since: dict[str, float] = {}
        """Since when each model in `present` is there."""
        self.loads: dict[str, Load] = {}
        """The workers that are ordered to load a model, by name."""
        self.turns: dict[str, tuple[Phase, float, int]] = {}
        """What the queues of models without slots wait for, as found for the entry `turns_of`."""
        self.turns_of = (-1, 0.0)
        self.ends_from = self.arrivals_from = 0.0
        """Before these times no other end or arrival is sampled."""
        self._arrivals = 0
        self.follow_from = 0.0
        """Before this time no other call is followed."""
        self.followed: dict[str, tuple[Ratios, ...]] = {}
        """The ratios of its tenant, of its model and of all, for each waiting call that is followed."""

    def passed(self, seconds: float) -> None:
        """Count the time since the last entry for the models that calls waited for."""
        for pace, slots in self._saturated.values():
            pace.passed(seconds, slots)

    def see_models(self, waiting: Collection[str], slots: Slots, now: float) -> None:
        """Remember the models that calls wait for from here on. `now`: Unix seconds."""
        open_slots = slots.open_by_model
        present = [(model, open_slots[model]) for model in waiting if model in open_slots]
        if present != self.present:
            self.present = present
            self._saturated = {model: (self.model(model).pace, slots) for model, slots in present}
            self._note_presence(waiting, slots, now)
        if self.missing or len(present) < len(waiting):
            self._note_absences(waiting, open_slots, now)

    def _note_presence(self, waiting: Collection[str], slots: Slots, now: float) -> None:
        for model, since in list(self.since.items()):
            if model not in slots.open_by_model:
                if model in waiting:
                    self.model(model).stay_s.observe(now - since)
                del self.since[model]
        for model, _ in self.present:
            self.model(model).slots = self.all.slots = max(worker.slots for worker in slots.of(model))
            if model not in self.since:
                self.since[model] = min((worker.config.loaded_at or now for worker in slots.of(model)), default=now)

    def _note_absences(self, waiting: Collection[str], open_slots: Mapping[str, int], now: float) -> None:
        for model, since in list(self.missing.items()):
            if model in open_slots:
                for each in (self.model(model), self.all):
                    each.absences_s.append(now - since)
            if model in open_slots or model not in waiting:
                del self.missing[model]
        for model in waiting:
            if model not in open_slots:
                self.missing.setdefault(model, now)

    def see_loads(self, workers: Mapping[str, Worker], changing: Mapping[str, Worker], now: float) -> None:
        """Follow the workers that are ordered to load a model. `changing`: these workers, and others."""
        for worker in changing.values():
            if worker.load:
                load = self.loads.get(worker.name)
                if load is None or load.ordered_at != worker.ordered_at:
                    load = Load(worker.load, worker.ordered_at, worker.slots, bool(worker.running))
                    self.loads[worker.name] = load
                    self.all.slots = max(self.all.slots, worker.slots)
                if load.empty_at is None and not worker.running:
                    load.empty_at = now
        for name, load in list(self.loads.items()):
            worker_now = workers.get(name)
            if worker_now is None or not worker_now.load:
                del self.loads[name]
                if worker_now is not None and worker_now.model == load.model and load.was_running:
                    self.all.drain_s.observe((load.empty_at or now) - load.ordered_at)

    def count_ends(self, now: float, *, is_sampled: bool) -> None:
        """Count the ends of this entry; with `is_sampled` the last of them for its tenant too. `now`: Unix seconds."""
        for call, served in self.ended:
            if (saturated := self._saturated.get(call.model)) is not None:
                saturated[0].served += served
                saturated[0].ends += 1.0
        if is_sampled:
            call, served = self.ended[-1]
            self._costs(call.tenant.name, call.model).on_ended(served)
            for each in (self.model(call.model), self.all):
                each.on_ended(served, max(0.0, now - call.dispatched_at))
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
        ratios = costs.ratios if costs is not None else None
        return ratios is None or sum(each.observed.waiting for each in ratios.values()) < FOLLOWED_MAX

    def follow(self, call: Call, phase: Phase, predicted_s: float, now: float) -> None:
        """Compare the call's wait from now on with the predicted one when it is dispatched."""
        costs = self._costs(call.tenant.name, call.model)
        if costs.ratios is None:
            costs.ratios = {}
        kept = costs.ratios, self.model(call.model).ratios, self.all.ratios
        ratios = self.followed[call.id] = tuple(each.setdefault(phase, Ratios()) for each in kept)
        for each in ratios:
            each.observed.predicted(call.id, predicted_s, now)

    def on_dispatched(self, call_id: str, now: float) -> None:
        for each in self.followed.pop(call_id, ()):
            each.observed.on_dispatched(call_id, now)

    def on_left(self, call_id: str) -> None:
        """Forget a call that left its queue without a dispatch."""
        for each in self.followed.pop(call_id, ()):
            each.observed.on_left(call_id)

    def quantiles(self, costs: Costs | None, model: str, phase: Phase, prior: Quantiles, now: float) -> Quantiles:
        """Return the quantiles of actual over predicted waits: of the tenant, completed by its model's, by those of all
        models, and by the prior."""
        known = self.models.get(model)
        own = (self.all.ratios, known and known.ratios, costs and costs.ratios)
        for ratios in own:
            if ratios and phase in ratios:
                prior = ratios[phase].quantiles(now, prior)
        return prior

    def is_observed(self, model: str) -> bool:
        """Return whether enough waits for the model were compared with their predictions."""
        known = self.models.get(model)
        return known is not None and sum(len(each.observed) for each in known.ratios.values()) >= OBSERVATIONS_MIN

    def model(self, name: str) -> ModelWaits:
        found = self.models.get(name)
        if found is None:
            if len(self.models) >= MODELS_MAX:
                del self.models[next(iter(self.models))]
            found = self.models[name] = ModelWaits()
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
