"""The waiting times that a shard announces: P50 and P90 of the time until a call's dispatch, in seconds. With P10 it
refuses deadlines (accept.py).

    n = (own + others(n T / B)) / μ       E = the time of the nth end of a batch       policies/waiting.py
    P10, P50, P90 = q10, q50, q90 times (L + E)       at a guaranteed rate g also E = own / g, and the lesser of the two

Every queued call gets both: what is not measured yet has a prior.

- own: the call's position in its tenant's queue for the model, times the mean service of this tenant's calls; without
  ends of its own that of the model's calls, of all models', or its estimate
- others(T): what a fair order gives to other queues meanwhile (backlogs.py): of a queue of the same tier at most as
  much per weight as the tenant gets, of a more urgent tier all, of a less urgent one nothing; under `fcfs` all
- E: by the ages of the running calls, because calls that began together, as after a load, end together, after all of
  their prompts. The first batch of a model that is loaded next waits for no end. The part of prompts and the variation
  of outputs are those of the model's last ends. Until as many have ended as run, the first of which are the shortest,
  the part is that of the waiting calls' estimates
- T: the mean service μ of a call divided by the pace of a slot in a full batch (learned.py), with B open slots. The
  prior of the pace is that of the model's calls that ran among few, times the slowdown of other models' full batches,
  and at most what a full worker reports
- L: seconds until the model has slots: the rest of the drain (`drain_s`, corrected by the drains seen) and of the load
  (planning/load_rests.py) if a worker is ordered to load it; else the rest of the model's absence
  (planning/absences.py), of which the soonest time at which a worker may have it is the prior. A model that is swapped
  out while calls wait has turns (`with_turns`), but no call waits longer than until the fleet has served all that is
  before it, and all that waits and comes for other models: past turns say nothing of a burst that ends. Deferred calls
  for a model that is loaded nowhere wait until they are urgent, unless a worker is idle
- q10, q50, q90: quantiles of actual over predicted waits (planning/wait_ratios.py), of the tenant, its model and all
  models, for each phase apart: a wait for a few ends scatters more than one for many, and a wait for a swap otherwise.
  For a missing model L has quantiles of its own, and no ratio corrects them: the calls of one absence share its
  length, so that their ratios are one observation. For a load P90 is at least that of L, with E. What is announced
  moves on from these until it covers what it promises (planning/coverage.py), for each tenant, model and phase; while
  a model is loaded or missing, for all models together (record.py). For a missing model L moves

Source: QLM (SoCC 2024), section 6, equations 2 and 3. others(T) is the fluid model of weighted fair queueing: every
other queue j gets as much per weight, or is empty, so with b_j the service that waits in it, λ_j its forecast arrivals
and v = own / weight,

    others(T) = Σ_j min(b_j + λ_j min(T, FORECAST_S), v w_j)

Deviations:
- QLM counts every request before this one in one virtual queue, the case of first come, first served.
- QLM forecasts no arrivals. Without them, later calls of a light tenant are missed, which a fair order serves first;
  without an end of the forecast, a burst would last for ever.
- Service units (input + 2 x output), in which the gate charges and measures, instead of output tokens.
- The wait ends with the dispatch, not with the last token of the requests before. A slot is the batch's unit here.
- q50 and q90 stand in place of QLM's normal distribution of the sum of the outputs.
- others(T) is taken as a straight line from 0 to FORECAST_S, because the exact one takes O(queues) for each
  announcement. It is concave, so the line is below it by a little.

The sums over all queues change by the queues that changed since they were last read (backlogs.py). So neither an
announcement nor an entry takes longer with many tenants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from statistics import fmean
from typing import NamedTuple

from dispatcher.model.facts import Accepted, Dispatched, Dropped, Fact, ModelOrdered, WorkerLost, WorkerSet
from dispatcher.policies.orders.queues import Call, Tenant
from dispatcher.policies.planning.wait_ratios import Quantiles
from dispatcher.policies.tiers import Tier
from dispatcher.policies.waiting import FullBatch, drained_s, with_turns
from dispatcher.shard.state.records import due_at
from dispatcher.shard.state.state import State
from dispatcher.shard.waits.backlogs import DEFERRED_RANK, Backlogs, Part, QueueName, RankSums, scaled
from dispatcher.shard.waits.learned import COSTS_MIN, FORECAST_S, MEMORY, Costs, ModelWaits, Phase
from dispatcher.shard.waits.loads import until_loaded
from dispatcher.shard.waits.record import FleetFit, FleetWork, WaitRecord

NEAR_ENDS = 4.0
"""A wait for at most so many ends is of the phase NEAR."""
LEAST_S = 0.001
"""No shorter wait is predicted, because a ratio to 0 has no meaning."""
_VARIATION = 0.8
"""The standard deviation of a model's outputs over their mean, while this is unknown."""
_ESTIMATES = 32
"""Estimates are the mean of at most so many waiting calls."""
COST = 500.0
"""Service units of a call of which nothing is known."""
SLOT_PER_S = 50.0
"""Service units per second of a slot before any call has ended: 25 output tokens."""
SHARED_LEAST_S = 2.0
"""The rest of the fleet does not make a wait shorter than this."""
PRIORS = {
    Phase.NEAR: Quantiles(0.2, 1.0, 2.5),
    Phase.FAR: Quantiles(0.5, 1.0, 1.6),
    Phase.ORDERED: Quantiles(0.8, 1.0, 1.6),
    Phase.MISSING: Quantiles(0.4, 1.0, 2.5),
    Phase.DEFERRED: Quantiles(0.1, 1.0, 3.0),
}
"""The quantiles before any wait was observed. Chosen on the scenes of benchmarks/announced_waits.py."""
CHANGED_MOST = 100
"""An entry brings the sums up to date if more tenants than this have changed. So no reader has to do it for many."""
_ROUNDING = 1e-6
_SAMPLE_EVERY_S = 0.004
"""At most one end and one arrival in so many seconds changes the costs and the forecast of its tenant."""
_WORKS_KEPT_S = 0.2
_FOLLOW_EVERY_S = 0.02
"""At most one waiting call in so many seconds is compared with its prediction. More would not change a quantile."""
_FROM_THE_PACE = frozenset({Phase.NEAR, Phase.FAR})
"""Waits of these phases are compared with their predictions only if these are from a measured pace. Else the error of
the prior pace would correct the predictions from the measured one."""
_OF_WORKERS = (ModelOrdered, WorkerSet, WorkerLost)
_AT_ONCE = Quantiles(0.0, 0.0, 0.0)
_WITH_GUARANTEES = frozenset({"bwfq", "ratio", "ratio+wake"})
"""The orders that serve a tenant at its guaranteed rate at least."""


class Wait(NamedTuple):
    """Seconds until a dispatch. `predicted_s`: the prediction, before the correction by the observed ratios.

    `p10_s`: one wait in ten is shorter."""

    p10_s: float
    p50_s: float
    p90_s: float
    predicted_s: float
    phase: Phase


class Theory(NamedTuple):
    """A wait before it is corrected by past ones: `until_loaded_s`, and then `queued_s`, both in seconds.

    `absent`: the quantiles of the seconds until the model has slots. `prior`: of actual over predicted waits.
    `near_s`: the seconds of NEAR_ENDS ends."""

    phase: Phase
    absent: Quantiles
    until_loaded_s: float
    queued_s: float
    near_s: float
    prior: Quantiles


def expected_wait(state: State, tenant: Tenant, model: str, position: int, *, deferred: bool = False) -> Wait:
    """Return the wait of the call at this position of the tenant's queue for the model."""
    theory = _theory(state, tenant, model, position, deferred)
    return correct(state.waits, state.waits.costs.get((tenant.name, model)), model, theory, state.at)


def _theory(state: State, tenant: Tenant, model: str, position: int, deferred: bool) -> Theory:
    costs = state.waits.costs.get((tenant.name, model))
    each = _mean_cost(state, tenant, model, deferred)
    own = position * (costs.mean if costs is not None and costs.ends >= COSTS_MIN else each)
    now, later = _others(state, tenant, (model, deferred), own, each)
    slots, phase, absent, per_s = _service(state, model)
    ends = drained_s(own, now, later, per_s, forecast_s=FORECAST_S) * per_s / each
    if phase is not Phase.FAR:
        ends -= slots
    batch = _batch(state, tenant, (model, deferred), slots, slots * each / per_s, is_loaded=phase is Phase.FAR)
    queued_s = batch.end_s(ends) if ends > _ROUNDING else 0.0
    if tenant.config.rate_per_s and state.settings.tiers is None and state.order.name in _WITH_GUARANTEES:
        queued_s = min(queued_s, own / min(per_s, tenant.config.rate_per_s * state.scale()))
    queued_s = _in_turns_s(state, model, queued_s)
    near_s = batch.end_s(NEAR_ENDS)
    if phase is Phase.FAR and (ends <= NEAR_ENDS or queued_s <= near_s):
        phase = Phase.NEAR
    until_loaded_s, prior = absent.p50, PRIORS[phase]
    if deferred:
        if phase is Phase.MISSING:
            until_loaded_s = max(until_loaded_s, _until_urgent_s(state, tenant, model))
        phase, prior = Phase.DEFERRED, PRIORS[Phase.DEFERRED]
    return Theory(phase, absent, until_loaded_s, queued_s, near_s, prior)


def correct(record: WaitRecord, costs: Costs | None, model: str, theory: Theory, now: float) -> Wait:
    """Return the wait to announce: what the theory says, by the ratios and the coverage of past waits."""
    phase, absent, until_loaded_s, queued_s, near_s, prior = theory
    predicted_s = max(LEAST_S, until_loaded_s + queued_s)
    if phase is Phase.MISSING:
        p10_s, p50_s, p90_s = (each_s + queued_s for each_s in record.cover(costs, model, phase, absent, now))
        return Wait(max(LEAST_S, p10_s), max(LEAST_S, p50_s), max(LEAST_S, p90_s), predicted_s, phase)
    found = record.quantiles(costs, model, phase, prior, now)
    _, p50, p90 = record.cover(costs, model, phase, found, now)
    p10 = record.p10(costs, model, phase, prior.p10, now)
    p10_s, p50_s, p90_s = p10 * predicted_s, p50 * predicted_s, p90 * predicted_s
    if phase is Phase.ORDERED:
        p90_s = max(p90_s, absent.p90 + queued_s)
    if phase is Phase.FAR:
        near = record.quantiles(costs, model, Phase.NEAR, PRIORS[Phase.NEAR], now)
        near = record.cover(costs, model, Phase.NEAR, near, now)
        p50_s, p90_s = max(p50_s, near.p50 * near_s), max(p90_s, near.p90 * near_s)
    return Wait(min(p10_s, p50_s), p50_s, max(p50_s, p90_s), predicted_s, phase)


def _mean_cost(state: State, tenant: Tenant, model: str, deferred: bool) -> float:
    """Return the mean service of the model's calls. Without any end it is the mean estimate of the tenant's first
    waiting calls: that of one call would make each wait several times too short or too long."""
    record = state.waits
    for known in (record.models.get(model), record.all):
        if known is not None and known.costs.ends and known.costs.mean > 0:
            return known.costs.mean
    costs = [call.cost for call in _first_waiting(tenant, (model, deferred))]
    return fmean(costs) if costs else COST


def _first_waiting(tenant: Tenant, name: QueueName) -> list[Call]:
    """Return the calls at the front of a queue, without those that cost nothing."""
    queue = tenant.queues.get(name)
    waiting = queue.calls[:_ESTIMATES] if queue is not None else ()
    return [call for *_, call in waiting if call.queued and call.cost > 0]


def _batch(state: State, tenant: Tenant, queue: QueueName, slots: int, full_s: float, *, is_loaded: bool) -> FullBatch:
    """Return the model's batch. One that is loaded next begins with `slots` requests at once."""
    model, _ = queue
    known = state.waits.models.get(model) or state.waits.all
    running = state.running_ages.count(model) if is_loaded else 0
    if known.costs.ends >= max(COSTS_MIN, min(running, MEMORY)):
        prompts, variation = known.prompts, known.variation
    else:
        prompts, variation = _prompts_estimate(state, tenant, queue), _VARIATION
    ages = state.running_ages.of(model, state.at) if is_loaded else (0.0, 0.0)
    return FullBatch(slots, full_s, prompts, variation, *ages)


def _prompts_estimate(state: State, tenant: Tenant, queue: QueueName) -> float:
    """Return the part of prompts in the service of the tenant's first waiting calls, as estimated; 0 without calls, and
    for those without output."""
    calls = _first_waiting(tenant, queue)
    service = sum(call.cost for call in calls)
    prompts = sum(state.settings.service(call.terms.input_tokens, 0) for call in calls)
    return prompts / service if prompts < service else 0.0


def _service(state: State, model: str) -> tuple[int, Phase, Quantiles, float]:
    """Return the slots of the model, what its queues wait for, the quantiles of the seconds until it has these slots,
    and their service per second."""
    record = state.waits
    known = record.models.get(model) or record.all
    slots = state.slots.open_by_model.get(model, 0)
    if slots:
        prior = _slot_prior(record, known, known.full_slot_per_s)
        running = state.running_ages.count(model)
        return slots, Phase.FAR, _AT_ONCE, slots * known.pace.slot_per_s(prior, running)
    turn = until_loaded(state, model)
    slots = known.slots or max(turn.slots, record.all.slots)
    prior = _slot_prior(record, known, known.full_slot_per_s or turn.full_slot_per_s)
    return slots, turn.phase, turn.in_s, slots * known.pace.slot_per_s(prior)


def _slot_prior(record: WaitRecord, known: ModelWaits, full_per_s: float) -> float:
    """Return the service per second of a slot before the model's pace is measured. A call that runs among few others
    is faster than one in a full batch, so it is at most that of a full worker, if this is known."""
    alone = known.alone.own_slot_per_s
    seen = alone * record.all.slowdown.with_prior(1.0) if alone else known.slot_per_s or record.all.slot_per_s
    return min(seen or inf, full_per_s or inf) if seen or full_per_s else SLOT_PER_S


def observe(state: State, facts: Sequence[Fact], seconds: float) -> None:
    """Learn from an entry that was confirmed or folded. `seconds`: the time since the entry before."""
    record, at = state.waits, state.at
    if not state.settings.announces_waits:
        for fact in facts:
            if isinstance(fact, Dispatched):
                _note_start(state, fact)
        return
    record.passed(seconds)
    if record.ended:
        is_sampled = at >= record.ends_from
        if is_sampled:
            record.ends_from = at + _SAMPLE_EVERY_S
        record.count_ends(at, is_sampled=is_sampled)
    if state.waiting_models or record.present or record.missing:
        record.see_models(state.waiting_models, state.slots, at)
    for fact in facts:
        if isinstance(fact, Dispatched):
            record.on_dispatched(fact.id, at)
            _note_start(state, fact)
        elif isinstance(fact, Dropped):
            record.on_left(fact.id)
        elif at >= record.arrivals_from and isinstance(fact, Accepted):
            record.arrivals_from = at + _SAMPLE_EVERY_S
            record.on_arrived(fact.terms.tenant, fact.terms.model, state.arrivals, at)
            if at >= record.follow_from:
                _follow(state, fact.id)
        elif isinstance(fact, _OF_WORKERS):
            record.fits.clear()
            record.see_load(fact.worker, state.workers.get(fact.worker), at)
    if record.draining:
        record.see_idle(state.workers, at)
    record.fade_oldest(at)


def _note_start(state: State, fact: Dispatched) -> None:
    """Tell the records that plans read that a call has begun, and whether it was due before."""
    if state.slots.can_swap and fact.attempt == 1 and (call := state.calls.get(fact.id)) is not None:
        for each in (state.waits.begun, state.waits.forecasts):
            each.on_started(call.tenant.name, due_at(call), state.at)


def _follow(state: State, call_id: str) -> None:
    call = state.calls.get(call_id)
    if call is None or not call.queued or not state.waits.may_follow(call):
        return
    state.waits.follow_from = state.at + _FOLLOW_EVERY_S
    position = call.tenant.queues[call.model, call.deferred].count
    wait = expected_wait(state, call.tenant, call.model, position, deferred=call.deferred)
    if wait.phase in _FROM_THE_PACE and not state.waits.has_pace(call.model):
        return
    announced = Quantiles(wait.p10_s, wait.p50_s, wait.p90_s)
    state.waits.follow(call, wait.phase, wait.predicted_s, announced, state.at)


def _others(state: State, tenant: Tenant, queue: QueueName, own: float, mean_cost: float) -> tuple[float, float]:
    """Return the service of other queues before the tenant has received `own`: of what waits now, and of that and what
    is forecast to arrive in FORECAST_S seconds. `mean_cost`: the model's mean service of a call."""
    model, deferred = queue
    backlogs = _present_backlogs(state)
    ranks = backlogs.ranks.get(model)
    if ranks is None:
        return 0.0, 0.0
    rank = _rank_of(state, tenant, deferred)
    level = inf if state.order.name == "fcfs" else own / tenant.config.weight
    now = later = 0.0
    if (same := ranks.get(rank)) is not None:
        given = same.given(level, mean_cost)
        parts = backlogs.waiting(tenant.name, queue, mean_cost)
        now, later = (max(0.0, each - min(part, own)) for each, part in zip(given, parts, strict=True))
    for urgent, sums in ranks.items() if len(ranks) > 1 else ():
        if urgent < rank:
            before, expected = sums.given(inf, mean_cost)
            now, later = now + before, later + expected
    return now, now if level == inf else max(now, later)


def _in_turns_s(state: State, model: str, served_s: float) -> float:
    """Return the wait for `served_s` seconds of service by the model's slots. It grows with them."""
    known = state.waits.models.get(model)
    turns_s = served_s
    if known is not None and known.stay_s.count:
        turns_s = with_turns(served_s, known.stay_s.value, known.absence_s)
    if turns_s <= SHARED_LEAST_S or not state.slots.can_swap:
        return turns_s
    return min(turns_s, max(SHARED_LEAST_S, _all_served_s(state, model, served_s)))


def _all_served_s(state: State, model: str, served_s: float) -> float:
    """Return the seconds until the fleet has served what takes the model's slots so long, and all that waits and comes
    for other models: no worker is without work while any waits that it can load."""
    works = _fleet_works(state)
    own = works.get(model)
    if own is None:
        return inf
    now = sum(each.now_s for each in works.values()) - own.now_s
    later = sum(each.later_s for each in works.values()) - own.later_s
    return own.fit.swap_s + drained_s(served_s * own.fit.part, now, later, 1.0, forecast_s=FORECAST_S)


def _fleet_works(state: State) -> dict[str, FleetWork]:
    """Return the work of each model's queues. It is found again at most every _WORKS_KEPT_S seconds."""
    record = state.waits
    if not record.works_at <= state.at < record.works_at + _WORKS_KEPT_S:
        record.works_at = state.at
        found = ((model, _fleet_work(state, model, ranks)) for model, ranks in _present_backlogs(state).ranks.items())
        record.works = {model: work for model, work in found if work is not None}
    return record.works


def _fleet_work(state: State, model: str, ranks: Mapping[int, RankSums]) -> FleetWork | None:
    fit = state.waits.fits.get(model)
    if fit is None:
        fit = state.waits.fits[model] = _fit(state, model)
    if not fit.part:
        return None
    *_, per_s = _service(state, model)
    mean_cost = (state.waits.models.get(model) or state.waits.all).costs.mean or state.waits.all.costs.mean or COST
    now, later = zip(*(each.given(inf, mean_cost) for each in ranks.values()), strict=True)
    return FleetWork(fit.part * sum(now) / per_s, fit.part * sum(later) / per_s, fit)


def _fit(state: State, model: str) -> FleetFit:
    """Return the model's part of the fleet. A worker that does not know its rate counts as the mean of the others."""
    able = [worker for worker in state.workers.values() if model in worker.swap_s]
    if not able:
        return FleetFit(0.0, 0.0)
    known = {each.name: rate for each in able if (rate := each.capacity_with(model))}
    usual = sum(known.values()) / len(known) if known else 1.0
    rates = [known.get(each.name, usual) for each in able]
    serving = sum(rate for each, rate in zip(able, rates, strict=True) if each.model == model and each.slots_open)
    return FleetFit((serving or usual) / sum(rates), max(each.swap_s[model] for each in able))


def _until_urgent_s(state: State, tenant: Tenant, model: str) -> float:
    """Return the seconds until the tenant's deferred calls may cause a swap: 0 if a worker is idle."""
    queue, slack = tenant.queues.get((model, True)), state.order.slack
    if slack is None or queue is None or not queue.count:
        return 0.0
    if any(not worker.running and not worker.load for worker in state.workers.values()):
        return 0.0
    return max(0.0, queue.head().terms.due_at - slack.urgent_s - state.at)


def _present_backlogs(state: State) -> Backlogs:
    """Return the sums. They are brought up to date at the first call for an entry, because a change of the sums makes
    the next reading expensive (`Levels`)."""
    record = state.waits
    if not record.is_summed:
        sum_changed(state)
        record.is_summed = True
    return record.backlogs


def sum_changed(state: State, *, most: int = 0) -> None:
    """Bring the sums up to date with the tenants that changed, if those are more than `most`."""
    record = state.waits
    if len(record.changed) <= most:
        return
    for name in record.changed:
        tenant = state.tenants.get(name)
        queues = {*record.backlogs.parts.get(name, ())}
        if tenant is not None:
            queues |= {*tenant.queues, *((model, False) for model in record.forecast.get(name, ()))}
        for queue in queues:
            record.backlogs.set(name, queue, _part(state, tenant, queue))
    record.changed.clear()


def _rank_of(state: State, tenant: Tenant, deferred: bool) -> int:
    """Return the rank of the tenant's calls; 0 is the most urgent."""
    if deferred:
        return DEFERRED_RANK
    return Tier(tenant.config.tier).rank if state.settings.tiers is not None else 0


def _part(state: State, tenant: Tenant | None, name: QueueName) -> Part | None:
    if tenant is None:
        return None
    model, deferred = name
    queue = tenant.queues.get(name)
    count = queue.count if queue is not None else 0
    costs = state.waits.costs.get((tenant.name, model))
    arriving = 0.0 if costs is None or deferred else costs.recent
    if not count and not arriving:
        return None
    mean = costs.own_mean if costs is not None else 0.0
    unit = mean or 1.0
    now, later = scaled(count * unit), scaled((count + arriving) * unit)
    if not later:
        return None
    return Part(_rank_of(state, tenant, deferred), mean > 0.0, scaled(tenant.config.weight), now, later)
