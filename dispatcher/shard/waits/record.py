"""What a shard remembers of service and waiting times, to announce waiting times (estimate.py).

It follows from the facts in the order in which they are confirmed or folded, but it is not in the log: a copy that
began with a snapshot knows less than others, and no fact depends on it. All of it is bounded. What is kept of a model
and of a tenant's calls stands in learned.py. Waits are compared with their predictions for at most FOLLOWED_MAX waiting
calls of a tenant at a time: a smaller sample had mostly calls that arrived just after a queue was emptied, and their
waits are short.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from dispatcher.policies.orders.queues import Call
from dispatcher.policies.planning.begun import BegunRecord
from dispatcher.policies.planning.coverage import Coverage
from dispatcher.policies.planning.forecast_record import ForecastRecord
from dispatcher.policies.planning.wait_ratios import Quantiles
from dispatcher.policies.waiting import drain_s
from dispatcher.shard.state.indexes import Slots
from dispatcher.shard.state.records import Worker
from dispatcher.shard.waits.backlogs import Backlogs
from dispatcher.shard.waits.learned import COSTS_MIN, PACE_ENDS, Costs, ModelWaits, Pace, Phase, Ratios

REST_S = 2.0
"""A running call still runs for so long, before any has ended."""
OBSERVATIONS_MIN = 20
"""With fewer observed waits for its model, no deadline is refused."""
FOLLOWED_MAX = 1000
COMMON_LEVELS = frozenset({Phase.ORDERED, Phase.MISSING})
"""In these phases all models have the same levels. What is wrong then is the plan's or the workers', not the tenant's,
and a model has a few loads and absences in a whole day."""
COSTS_MAX = 2_000
"""Tenants and models with costs and ratios of their own. The one that was added first is forgotten first."""
MODELS_MAX = 1_000
_FADE_EVERY_S = 5.0
"""A tenant's recent arrivals fade at most this often, so its forecast is too high by at most 4.3 %."""
_FADES_MAX = 8
"""The arrivals of at most this many tenants fade with one entry. With many tenants and few entries they fade later."""


@dataclass(slots=True)
class Load:
    """A worker that is ordered to load a model. Unix seconds. `drain_s`: expected at the order, 0 without running
    calls. `swap_s`: as the worker says. `empty_at`: None while calls run on it."""

    model: str
    ordered_at: float
    slots: int
    drain_s: float
    swap_s: float
    empty_at: float | None = None


class LoadTurn(NamedTuple):
    """What the queues of a model without open slots wait for. `in_s`: the seconds until a worker with so many slots has
    it. `full_slot_per_s`: as that worker reports it, 0 if unknown."""

    phase: Phase
    in_s: Quantiles
    slots: int
    full_slot_per_s: float


class FleetFit(NamedTuple):
    """`part`: of the service of the workers that can load a model, what those with the model have now, or else one that
    loads it; 0 if none can. `swap_s`: the longest swap to it."""

    part: float
    swap_s: float


class FleetWork(NamedTuple):
    """The seconds that the fleet takes for all queues of a model: of what waits now, and with forecast arrivals."""

    now_s: float
    later_s: float
    fit: FleetFit


class Followed(NamedTuple):
    """What learns from a waiting call: the ratios of its tenant, of its model and of all, and the coverage of its model
    and of its tenant, or of all models."""

    ratios: tuple[Ratios, ...]
    coverages: tuple[Coverage, ...]


class WaitRecord:
    def __init__(self) -> None:
        self.ended: list[tuple[Call, float, float]] = []
        """The calls that ended in the entry that is being applied, each with its true service, and that of its output
        alone."""
        self.models: dict[str, ModelWaits] = {}
        self.all = ModelWaits()
        """All models together: the prior of each."""
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
        self._saturated: list[Pace] = []
        self.missing: dict[str, float] = {}
        """The other models that calls wait for, each with the time since when (Unix seconds)."""
        self.since: dict[str, float] = {}
        """Since when each model in `present` is there."""
        self.loads: dict[str, Load] = {}
        """The workers that are ordered to load a model, by name."""
        self.draining: dict[str, Load] = {}
        """The loads of workers on which calls still run, by name."""
        self.turns: dict[str, LoadTurn] = {}
        """What the queues of models without slots wait for, as found for the entry `turns_of`."""
        self.turns_of = (-1, 0.0)
        self.works: dict[str, FleetWork] = {}
        """The work of each model's queues, as found at `works_at` (Unix seconds)."""
        self.works_at = -inf
        self.fits: dict[str, FleetFit] = {}
        """The models' parts of the fleet, until a worker changes."""
        self.ends_from = self.arrivals_from = 0.0
        """Before these times no other end or arrival is sampled."""
        self._arrivals = 0
        self.follow_from = 0.0
        """Before this time no other call is followed."""
        self.begun = BegunRecord()
        self.forecasts = ForecastRecord()
        """What plans forecast, and what followed."""
        self.followed: dict[str, Followed] = {}
        """The waiting calls that are followed, by id."""

    def passed(self, seconds: float) -> None:
        """Count the time since the last entry for the models that calls waited for."""
        for pace in self._saturated:
            pace.pass_seconds(seconds)

    def see_models(self, waiting: Collection[str], slots: Slots, now: float) -> None:
        """Remember the models that calls wait for from here on. `now`: Unix seconds."""
        open_slots = slots.open_by_model
        present = [(model, open_slots[model]) for model in waiting if model in open_slots]
        if present != self.present:
            self.present = present
            self._saturated = [self.model(model).pace for model, _ in present]
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
            known, workers = self.model(model), slots.of(model)
            known.slots = self.all.slots = max(worker.slots for worker in workers)
            full = max(worker.config.service_per_s / max(1, worker.slots) for worker in workers)
            known.full_slot_per_s = full or known.full_slot_per_s
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

    def see_load(self, name: str, worker: Worker | None, now: float) -> None:
        """Follow the order of a worker that changed. None: it is lost. `now`: Unix seconds."""
        load = self.loads.get(name)
        if worker is not None and worker.load:
            if load is None or load.ordered_at != worker.ordered_at:
                swap_s, drains_s = worker.swap_s.get(worker.load, 0.0), self.expected_drain_s(worker)
                load = Load(worker.load, worker.ordered_at, worker.slots, drains_s, swap_s)
                self.loads[name] = self.draining[name] = load
                self.all.slots = max(self.all.slots, worker.slots)
        elif load is not None:
            del self.loads[name]
            self.draining.pop(name, None)
            if worker is not None and worker.model == load.model:
                self._note_load(load, now)

    def see_idle(self, workers: Mapping[str, Worker], now: float) -> None:
        """Note the workers on which no call runs any more before they load a model."""
        for name, load in list(self.draining.items()):
            worker = workers.get(name)
            if worker is None or not worker.running:
                load.empty_at = now
                del self.draining[name]

    def _note_load(self, load: Load, now: float) -> None:
        """Learn from a model that was loaded as ordered."""
        empty_at = load.empty_at or now
        self.all.late_s.append(max(0.0, now - empty_at - load.swap_s))
        if load.drain_s:
            self.all.drain_ratio.observe((empty_at - load.ordered_at) / load.drain_s)

    def expected_drain_s(self, worker: Worker) -> float:
        """Return the seconds until the worker's running calls have ended, by the rest of a call of its model."""
        known = self.models.get(worker.model)
        rest_s = (known.rest_s if known is not None else 0.0) or self.all.rest_s or REST_S
        return drain_s(len(worker.running), rest_s)

    def count_ends(self, now: float, *, is_sampled: bool) -> None:
        """Count the ends of this entry; with `is_sampled` the last of them for its tenant too. `now`: Unix seconds."""
        for call, served, _ in self.ended:
            known = self.models.get(call.model) or self.model(call.model)
            pace = known.pace if call.dispatched_at > call.arrived_at else known.alone
            pace.served += served
            pace.slot_s += max(0.0, now - call.dispatched_at)
            pace.ends += 1.0
            if pace.ends >= PACE_ENDS:
                pace.served, pace.slot_s, pace.ends = pace.served / 2, pace.slot_s / 2, pace.ends / 2
        if is_sampled:
            call, served, outputs = self.ended[-1]
            self._costs(call.tenant.name, call.model).on_ended(served)
            for each in (self.model(call.model), self.all):
                each.on_ended(served, outputs, max(0.0, now - call.dispatched_at))
            self._note_slowdown(self.model(call.model))
            self.changed.add(call.tenant.name)
        self.ended.clear()

    def _note_slowdown(self, known: ModelWaits) -> None:
        if (full := known.pace.own_slot_per_s) and (alone := known.alone.own_slot_per_s):
            self.all.slowdown.observe(min(1.0, full / alone))

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

    def follow(self, call: Call, phase: Phase, predicted_s: float, announced: Quantiles, now: float) -> None:
        """Compare the call's wait from now on with the predicted and the announced one."""
        costs, known = self._costs(call.tenant.name, call.model), self.model(call.model)
        if costs.ratios is None:
            costs.ratios = {}
        kept = costs.ratios, known.ratios, self.all.ratios
        ratios = tuple(each.setdefault(phase, Ratios()) for each in kept)
        coverages = self._coverages(costs, known, phase)
        self.followed[call.id] = Followed(ratios, coverages)
        for each in ratios:
            each.observed.predicted(call.id, predicted_s, now)
        for each_coverage in coverages:
            each_coverage.on_announced(call.id, announced.p50, announced.p90, now)

    def _coverages(self, costs: Costs, known: ModelWaits, phase: Phase) -> tuple[Coverage, ...]:
        """Return what counts the outcomes of the tenant's calls of the model."""
        if phase in COMMON_LEVELS:
            return (self.all.coverage.setdefault(phase, Coverage()),)
        of_model = known.coverage.setdefault(phase, Coverage())
        if phase not in costs.coverage:
            costs.coverage[phase] = Coverage.like(of_model)
        return of_model, costs.coverage[phase]

    def on_dispatched(self, call_id: str, now: float) -> None:
        followed = self.followed.pop(call_id, None)
        if followed is not None:
            for each in followed.ratios:
                each.observed.on_dispatched(call_id, now)
            for coverage in followed.coverages:
                coverage.on_dispatched(call_id, now)

    def on_left(self, call_id: str) -> None:
        """Forget a call that left its queue without a dispatch."""
        followed = self.followed.pop(call_id, None)
        if followed is not None:
            for each in followed.ratios:
                each.observed.on_left(call_id)
            for coverage in followed.coverages:
                coverage.on_left(call_id)

    def cover(self, costs: Costs | None, model: str, phase: Phase, estimate: Quantiles, now: float) -> Quantiles:
        """Return the quantiles to announce: by the levels of the tenant, or else of its model, or of all models."""
        known = self.models.get(model)
        for each in (self.all,) if phase in COMMON_LEVELS else (costs, known):
            if each is not None and phase in each.coverage:
                return each.coverage[phase].move(estimate, now)
        return estimate

    def quantiles(self, costs: Costs | None, model: str, phase: Phase, prior: Quantiles, now: float) -> Quantiles:
        """Return the quantiles of actual over predicted waits: of the tenant, completed by its model's, by those of all
        models, and by the prior."""
        known = self.models.get(model)
        own = (self.all.ratios, known and known.ratios, costs and costs.ratios)
        for ratios in own:
            if ratios and phase in ratios:
                prior = ratios[phase].quantiles(now, prior)
        return prior

    def p10(self, costs: Costs | None, model: str, phase: Phase, prior: float, now: float) -> float:
        """Return the 0.1 quantile of these ratios by the number of requests: it refuses deadlines."""
        known = self.models.get(model)
        for ratios in (self.all.ratios, known and known.ratios, costs and costs.ratios):
            if ratios and phase in ratios:
                prior = ratios[phase].p10(now, prior)
        return prior

    def has_pace(self, model: str) -> bool:
        """Return whether the model's pace is more its own than the prior's."""
        known = self.models.get(model)
        return known is not None and known.pace.ends >= COSTS_MIN

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
