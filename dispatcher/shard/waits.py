"""The waiting times that a shard announces: P50 and P90 of the time until a call's dispatch, in seconds.

    T Θ = own + others(T)              at a guaranteed rate g also T = own / g, and the lesser of the two
    P50 = L + T
    P90 = L + q T + 1.28 σ √n / Θ

- own: the call's position in its tenant's queue for the model, times the mean service of this tenant's calls
- others(T): what a fair order gives to other queues meanwhile (backlogs.py): of a queue of the same tier at most as
  much per weight as the tenant gets, of a more urgent tier all, of a less urgent one nothing; under `fcfs` all
- Θ: the model's measured service per second while calls waited (wait_record.py). Without it nothing is announced
- L: seconds until the model is loaded, if it is loaded nowhere
- q: the 0.9 quantile of actual over predicted waits; n: the calls that are dispatched before; σ: deviation of a cost

Source: policies/planning/waiting.py and fair_drain.py, with these deviations. The wait ends with the dispatch, not
with the first token. At the gate a slot is the unit of the batch: a call waits only while no slot is free, and Θ
contains the rests of the running calls (each dispatch follows an end), so B r is not subtracted. others(T) is taken as
a straight line from 0 to FORECAST_S, because the exact one takes O(queues) for each announcement. It is concave, so
the line is below it by a little.

The sums over all queues are made anew at most every REFRESH_S seconds, and more rarely with many tenants. So an
announcement costs O(log tenants), and the sums take a bounded part of the processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, isfinite, sqrt
from typing import NamedTuple

from dispatcher.model.facts import Accepted, Dispatched, Dropped, Fact
from dispatcher.policies.orders.queues import Tenant
from dispatcher.policies.planning.fair_drain import FORECAST_S
from dispatcher.policies.planning.residency import DRAIN_S, residency_s
from dispatcher.policies.planning.waiting import NORMAL_P90
from dispatcher.policies.tiers import Tier
from dispatcher.shard.backlogs import NOTHING, Backlogs, Queued, sums
from dispatcher.shard.records import Worker
from dispatcher.shard.state import State
from dispatcher.shard.wait_record import COSTS_MIN, Costs, Pace

REFRESH_S = 0.1
REFRESH_TENANT_S = 0.001
"""The backlogs of n tenants are summed at most every REFRESH_S + n REFRESH_TENANT_S seconds."""
SAMPLE_EVERY_S = 0.004
"""At most one end and one arrival in so many seconds changes the costs and the forecast of its tenant."""
FOLLOW_EVERY_S = 0.02
"""At most one waiting call in so many seconds is compared with its prediction. More would not change a quantile."""
DEFERRED_RANK = len(Tier)
WITH_GUARANTEES = frozenset({"bwfq", "ratio", "ratio+wake"})
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
    now, later = _others(state, tenant, model, own, deferred)
    queued_s = _drained_s(own, now, later, per_s)
    if tenant.rate_per_s and state.settings.tiers is None and state.order.name in WITH_GUARANTEES:
        queued_s = min(queued_s, own / min(per_s, tenant.rate_per_s * state.scale()))
    p90_s = until_loaded_s + record.quantile(costs, pace, state.at) * queued_s
    if costs is not None and costs.variance:
        p90_s += NORMAL_P90 * sqrt(costs.variance * queued_s / (each * per_s))
    return Wait(until_loaded_s + queued_s, p90_s, queued_s)


def observe(state: State, facts: Sequence[Fact], seconds: float) -> None:
    """Learn from an entry that was confirmed or folded. `seconds`: the time since the entry before."""
    record, at = state.waits, state.at
    for pace in record.saturated.values():
        pace.passed(seconds)
    if record.ended:
        is_sampled = at >= record.ends_from
        if is_sampled:
            record.ends_from = at + SAMPLE_EVERY_S
        record.count_ends(is_sampled=is_sampled)
    if state.waiting_models or record.saturated:
        record.saturate([model for model in state.waiting_models if state.slots.is_loaded(model)])
    for fact in facts:
        if isinstance(fact, Dispatched):
            record.dispatched(fact.id, at)
        elif isinstance(fact, Dropped):
            record.left(fact.id)
        elif at >= record.arrivals_from and isinstance(fact, Accepted):
            record.arrivals_from = at + SAMPLE_EVERY_S
            record.arrived(fact.tenant, fact.model, state.arrivals)
            if at >= record.follow_from:
                _follow(state, fact.id)


def _follow(state: State, call_id: str) -> None:
    call = state.calls.get(call_id)
    if call is None or not call.queued or not state.waits.may_follow(call):
        return
    position = call.tenant.queues[call.model, call.deferred].count
    wait = expected_wait(state, call.tenant, call.model, position, deferred=call.deferred)
    if wait is not None:
        state.waits.follow_from = state.at + FOLLOW_EVERY_S
        state.waits.follow(call, wait.queued_s, state.at + wait.p50_s - wait.queued_s)


def _mean_cost(costs: Costs | None, pace: Pace) -> float:
    return costs.mean if costs is not None and costs.ends >= COSTS_MIN else pace.mean_cost


def _drained_s(own: float, now: float, later: float, per_s: float) -> float:
    """Return the first T with T x per_s = own + others(T), where others(T) goes from `now` to `later` at FORECAST_S."""
    growth = (later - now) / FORECAST_S
    if (own + later) < per_s * FORECAST_S:
        return (own + now) / (per_s - growth)
    return (own + later) / per_s


def _others(state: State, tenant: Tenant, model: str, own: float, deferred: bool) -> tuple[float, float]:
    """Return the service of other queues before the tenant has received `own`: of what waits now, and of that and what
    is forecast to arrive in FORECAST_S seconds."""
    ranks = _backlogs(state).get(model)
    if ranks is None:
        return 0.0, 0.0
    rank = _rank(state, tenant, deferred) if deferred or state.settings.tiers is not None else 0
    level = inf if state.order.name == "fcfs" else own / tenant.weight
    waiting, forecast = ranks.get(rank, (NOTHING, NOTHING))
    now, later = waiting.given(level, tenant.name, own), forecast.given(level, tenant.name, own)
    if len(ranks) > 1:
        for urgent, (before, expected) in ranks.items():
            if urgent < rank:
                now, later = now + before.total, later + expected.total
    return now, now if level == inf else max(now, later)


def _backlogs(state: State) -> dict[str, dict[int, tuple[Backlogs, Backlogs]]]:
    """Return the backlogs by model and rank, now and in FORECAST_S seconds, as they were at the last refresh."""
    record, now = state.waits, state.at
    if not record.summed_at <= now < record.summed_until:
        record.fade(exp(-max(0.0, now - record.summed_at) / FORECAST_S))
        record.backlogs = _sum_backlogs(state)
        record.summed_at, record.summed_until = now, now + REFRESH_S + REFRESH_TENANT_S * len(state.tenants)
    return record.backlogs


def _sum_backlogs(state: State) -> dict[str, dict[int, tuple[Backlogs, Backlogs]]]:
    """Sum what waits in each queue, and what is forecast to arrive: what the last FORECAST_S seconds brought."""
    found: dict[str, dict[int, dict[str, Queued]]] = {}
    for (name, model), costs in state.waits.costs.items():
        tenant = state.tenants.get(name)
        if tenant is not None and costs.recent:
            ranks = found.setdefault(model, {}).setdefault(_rank(state, tenant, False), {})
            ranks[name] = Queued(tenant.weight, 0.0, costs.recent * _mean_of(state, name, model))
    for tenant in state.tenants.values():
        if tenant.waiting:
            for (model, deferred), queue in tenant.queues.items():
                if queue.count:
                    ranks = found.setdefault(model, {}).setdefault(_rank(state, tenant, deferred), {})
                    arriving = ranks[tenant.name].arriving if tenant.name in ranks else 0.0
                    waiting = queue.count * (_mean_of(state, tenant.name, model) or queue.head().cost)
                    ranks[tenant.name] = Queued(tenant.weight, waiting, arriving)
    return {model: {rank: sums(queues) for rank, queues in ranks.items()} for model, ranks in found.items()}


def _mean_of(state: State, tenant: str, model: str) -> float:
    """Return the mean service of a tenant's calls; 0 if it is unknown."""
    pace = state.waits.paces.get(model)
    return _mean_cost(state.waits.costs.get((tenant, model)), pace) if pace is not None and pace.is_known else 0.0


def _rank(state: State, tenant: Tenant, deferred: bool) -> int:
    if deferred:
        return DEFERRED_RANK
    return Tier(tenant.tier).rank if state.settings.tiers is not None else 0


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
