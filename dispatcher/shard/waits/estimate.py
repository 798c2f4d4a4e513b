"""The waiting times that a shard announces: P50 and P90 of the time until a call's dispatch, in seconds.

    T Θ = own + others(T)              at a guaranteed rate g also T = own / g, and the lesser of the two
    P50 = L + T
    P90 = L + q T + 1.28 σ √n / Θ

- own: the call's position in its tenant's queue for the model, times the mean service of this tenant's calls
- others(T): what a fair order gives to other queues meanwhile (backlogs.py): of a queue of the same tier at most as
  much per weight as the tenant gets, of a more urgent tier all, of a less urgent one nothing; under `fcfs` all
- Θ: the model's measured service per second while calls waited (record.py). Without it nothing is announced
- L: seconds until the model is loaded, if it is loaded nowhere
- q: the 0.9 quantile of actual over predicted waits; n: the calls that are dispatched before; σ: deviation of a cost

Source: QLM (SoCC 2024), section 6, equations 2 and 3; 1.28 is the 0.9 quantile of its normal distribution. others(T) is
the fluid model of weighted fair queueing: every other queue j gets as much per weight, or is empty, so with b_j the
service that waits in it, λ_j its forecast arrivals and v = own / weight,

    others(T) = Σ_j min(b_j + λ_j min(T, FORECAST_S), v w_j)

Deviations:
- QLM counts every request before this one in one virtual queue, the case of first come, first served.
- QLM forecasts no arrivals. Without them, later calls of a light tenant are missed, which a fair order serves first;
  without an end of the forecast, a burst would last for ever.
- Service units (input + 2 x output), in which the gate charges and measures, instead of output tokens.
- The wait ends with the dispatch, not with the last token of the requests before. A slot is the unit of the batch at
  the gate: a call waits only while no slot is free, and Θ contains the rests of the running calls (each dispatch
  follows an end). So equation 2's error for the first batches does not arise (evidence/qlm/waits.py).
- q corrects what the normal distribution leaves out: later calls that are served first, and a Θ that changes.
- others(T) is taken as a straight line from 0 to FORECAST_S, because the exact one takes O(queues) for each
  announcement. It is concave, so the line is below it by a little.

The sums over all queues change by the queues that changed since they were last read (backlogs.py). So neither an
announcement nor an entry takes longer with many tenants.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, sqrt
from typing import NamedTuple

from dispatcher.model.facts import Accepted, Dispatched, Dropped, Fact
from dispatcher.policies.orders.queues import Tenant
from dispatcher.policies.planning.fleet import DRAIN_S, residency_s
from dispatcher.policies.tiers import Tier
from dispatcher.shard.state.records import Worker
from dispatcher.shard.state.state import State
from dispatcher.shard.waits.backlogs import DEFERRED_RANK, Backlogs, Part, QueueName, scaled
from dispatcher.shard.waits.record import COSTS_MIN, FORECAST_S

_NORMAL_P90 = 1.28
CHANGED_MOST = 100
"""An entry brings the sums up to date if more tenants than this have changed. So no reader has to do it for many."""
_SAMPLE_EVERY_S = 0.004
"""At most one end and one arrival in so many seconds changes the costs and the forecast of its tenant."""
_FOLLOW_EVERY_S = 0.02
"""At most one waiting call in so many seconds is compared with its prediction. More would not change a quantile."""
_WITH_GUARANTEES = frozenset({"bwfq", "ratio", "ratio+wake"})
"""The orders that serve a tenant at its guaranteed rate at least."""


class Wait(NamedTuple):
    """Seconds until a dispatch. `queued_s`: P50 without the time until the model is loaded."""

    p50_s: float
    p90_s: float
    queued_s: float


def expected_wait(state: State, tenant: Tenant, model: str, position: int, *, deferred: bool = False) -> Wait | None:
    """Return the wait of the call at this position of the tenant's queue for the model. None if it is unknown."""
    record = state.waits
    pace = record.paces.get(model)
    if pace is None or not pace.is_known:
        return None
    until_loaded_s = 0.0 if state.slots.is_loaded(model) else _until_loaded_s(state, model)
    if until_loaded_s == inf:
        return None
    costs = record.costs.get((tenant.name, model))
    each, per_s = pace.served / pace.ends, pace.served / pace.saturated_s
    own = position * (costs.mean if costs is not None and costs.ends >= COSTS_MIN else each)
    now, later = _others(state, tenant, (model, deferred), own, each)
    queued_s = _drained_s(own, now, later, per_s)
    if tenant.config.rate_per_s and state.settings.tiers is None and state.order.name in _WITH_GUARANTEES:
        queued_s = min(queued_s, own / min(per_s, tenant.config.rate_per_s * state.scale()))
    p90_s = until_loaded_s + record.quantile(costs, pace, state.at) * queued_s
    if costs is not None and costs.variance:
        p90_s += _NORMAL_P90 * sqrt(costs.variance * queued_s / (each * per_s))
    return Wait(until_loaded_s + queued_s, p90_s, queued_s)


def observe(state: State, facts: Sequence[Fact], seconds: float) -> None:
    """Learn from an entry that was confirmed or folded. `seconds`: the time since the entry before."""
    record, at = state.waits, state.at
    for pace in record.saturated.values():
        pace.passed(seconds)
    if record.ended:
        is_sampled = at >= record.ends_from
        if is_sampled:
            record.ends_from = at + _SAMPLE_EVERY_S
        record.count_ends(is_sampled=is_sampled)
    if state.waiting_models or record.saturated:
        record.saturate([model for model in state.waiting_models if state.slots.is_loaded(model)])
    for fact in facts:
        if isinstance(fact, Dispatched):
            record.on_dispatched(fact.id, at)
        elif isinstance(fact, Dropped):
            record.on_left(fact.id)
        elif at >= record.arrivals_from and isinstance(fact, Accepted):
            record.arrivals_from = at + _SAMPLE_EVERY_S
            record.on_arrived(fact.terms.tenant, fact.terms.model, state.arrivals, at)
            if at >= record.follow_from:
                _follow(state, fact.id)
    record.fade_oldest(at)


def _follow(state: State, call_id: str) -> None:
    call = state.calls.get(call_id)
    if call is None or not call.queued or not state.waits.may_follow(call):
        return
    position = call.tenant.queues[call.model, call.deferred].count
    wait = expected_wait(state, call.tenant, call.model, position, deferred=call.deferred)
    if wait is not None:
        state.waits.follow_from = state.at + _FOLLOW_EVERY_S
        state.waits.follow(call, wait.queued_s, state.at + wait.p50_s - wait.queued_s)


def _drained_s(own: float, now: float, later: float, per_s: float) -> float:
    """Return the first T with T x per_s = own + others(T), where others(T) goes from `now` to `later` at FORECAST_S."""
    growth = (later - now) / FORECAST_S
    if (own + later) < per_s * FORECAST_S:
        return (own + now) / (per_s - growth)
    return (own + later) / per_s


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


def _until_loaded_s(state: State, model: str) -> float:
    """Return the seconds until a worker has the model; infinity if none can load it."""
    return min((_load_s(state, worker, model) for worker in state.workers.values()), default=inf)


def _load_s(state: State, worker: Worker, model: str) -> float:
    swap_s = worker.swap_s.get(model, inf)
    if worker.config.state != "serving" or not isfinite(swap_s) or worker.load not in ("", model):
        return inf
    drain_s = DRAIN_S if worker.running else 0.0
    if worker.load == model:
        return max(0.0, worker.ordered_at + drain_s + swap_s - state.at)
    since = max(worker.config.loaded_at, worker.ordered_at)
    kept_s = residency_s(swap_s, worker.model in state.waiting_models) if worker.model else 0.0
    return max(0.0, since + kept_s - state.at) + drain_s + swap_s


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
