"""Chooses the rule that the fleet follows until the next plan, by playing each forward (forward.py, rules.py). Pure.

The cost of an outcome is, in this order of weight: the part of the worst-off tenant's entitled requests that is late,
the mean of that over tenants, the work that waits at the end, other lateness, and swaps. To a tenant's part comes _HAD
of what began late in the last quarter of an hour (begun.py), so that the worst-off is not the same in each plan; not to
that of a tenant beyond its share, which would hide how late another one is. A tenant of n arrivals weighs 1 - 0.5^n: of
a tenant with one request so far a forecast knows little, and long swaps were made for it.

Two margins keep a fleet from following the model's errors: the last rule stays unless another is better by _MARGIN, and
no worker swaps unless that is better by SWAP_MARGIN than the best rule that swaps none now. Neither margin holds while
a worker has nothing to do and requests wait for a model that no worker has: otherwise deferred work would wait for its
last moment.

The best rule is no worse than each simple one, as far as the model is right. Only its first decision is carried out:
the next plan plays anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from dispatcher.policies.planning.claims import Claims, TenantBacklog
from dispatcher.policies.planning.fleet import FleetWorker, ServiceRates
from dispatcher.policies.planning.forward import STEPS, Parcel, Play, PlayOutcome, Start, StartingWorker
from dispatcher.policies.planning.history import Expected
from dispatcher.policies.planning.rules import Rule, rules

_HORIZON_S, _HORIZON_MAX_S = 60.0, 240.0
_SWAP_TIMES = 4.0
"""The horizon is at least so many of the longest swaps."""
_MARGIN = 0.02
SWAP_MARGIN = 0.03
_MEAN, _LEFT, _SURPLUS, _SWAPPING = 0.5, 1.0, 0.02, 0.3
"""The weights beside the worst-off tenant, found on the scenes of benchmarks/planner_dominance.py. Swaps have a price
because the model's errors favour them: with 0.01 and idle workers without rests `short_due` had 43 swaps for 24."""
_CHECK_STEPS = 10
"""So many steps are played before it is looked again whether the rule is too late to be chosen."""
_HAD = 0.3
"""The weight of what began late, beside what is played forward."""
_FEW = 1.0
"""So many requests in time are added to those that a tenant has had."""
_CLAIMED_PART = 0.5
"""A tenant's arrivals to come are entitled if this part of its forecast is."""


class RuleChoice(NamedTuple):
    """`models`: of each worker, by name. `costs`: of the rules that were played to the end, by their names.
    `late_parts`: of the tenants within their share, the part of the requests of the next `horizon_s` seconds that would
    start late."""

    rule: str
    models: dict[str, str]
    costs: dict[str, float]
    late_parts: dict[str, float]
    horizon_s: float


def choose(
    backlogs: Sequence[TenantBacklog],
    claimed: Claims,
    workers: Sequence[FleetWorker],
    rates: ServiceRates,
    now: float,
    last: str,
    planned: Mapping[str, str],
) -> RuleChoice:
    """Return the choice. `last`: the rule of the last plan. `planned`: the models of the annealed plan, by worker."""
    names, start = _start(backlogs, claimed, workers, rates, now)
    number = {name: at for at, name in enumerate(names)}
    first = [number.get(planned[worker.name], -1) for worker in workers]
    has_idle_worker = _has_idle_worker(start)
    played = play_rules(start, rules(start, first), 0.0 if has_idle_worker else SWAP_MARGIN)
    costs = {name: cost(outcome, start) for name, outcome in played.items()}
    loaded = tuple(each.loaded for each in start.workers)
    best = min(costs, key=lambda name: costs[name])
    if not has_idle_worker:
        best = _best(played, costs, loaded, last, best)
    models = {
        worker.name: names[model] if model >= 0 else worker.loaded
        for worker, model in zip(workers, played[best].models, strict=True)
    }
    return RuleChoice(best, models, costs, _late_parts(backlogs, claimed, played[best]), start.horizon_s)


def _late_parts(backlogs: Sequence[TenantBacklog], claimed: Claims, outcome: PlayOutcome) -> dict[str, float]:
    """Return the forecast of the tenants within their shares."""
    beyond = _tenants_beyond(backlogs, claimed)
    parts = zip((backlog.tenant for backlog in backlogs), outcome.late, strict=True)
    return {tenant: min(1.0, late) for tenant, late in parts if tenant not in beyond}


def _tenants_beyond(backlogs: Sequence[TenantBacklog], claimed: Claims) -> set[str]:
    """Return the tenants beyond their shares: not all that waits and comes of them is entitled."""
    found = {piece.tenant for piece in claimed.pieces if not piece.is_entitled}
    return found | {each.tenant for each in backlogs if claimed.expected_parts[each.tenant] <= _CLAIMED_PART}


def play_rules(start: Start, candidates: Sequence[Rule], enough: float) -> dict[str, PlayOutcome]:
    """Return the outcomes of the rules that can be the choice, by their names: of the first one, and of those that cost
    at most SWAP_MARGIN more than the best before them. If the first one, which swaps nothing, costs `enough` at most,
    no other one is played."""
    found: dict[str, PlayOutcome] = {}
    least = inf
    for rule in candidates:
        play, most = Play(start), least + SWAP_MARGIN
        steps = play.steps(rule.decide)
        if all(step % _CHECK_STEPS or _cost_of_lateness(play.late_parts(), start) <= most for step in steps):
            found[rule.name] = play.outcome()
            least = min(least, cost(found[rule.name], start))
        if least <= enough:
            break
    return found


def cost(outcome: PlayOutcome, start: Start) -> float:
    """Return the cost of an outcome of the start."""
    rest = _LEFT * outcome.left + _SURPLUS * outcome.surplus_late + _SWAPPING * outcome.swapping
    return _cost_of_lateness(outcome.late, start) + rest


def _cost_of_lateness(late: Sequence[float], start: Start) -> float:
    if start.had_late:
        late = [part + _HAD * had for part, had in zip(late, start.had_late, strict=True)]
    if start.trust:
        late = [part * weight for part, weight in zip(late, start.trust, strict=True)]
    return max(late, default=0.0) + _MEAN * sum(late) / max(1, len(late))


def _has_idle_worker(start: Start) -> bool:
    """Return whether a worker has nothing to do while requests wait for a model that no worker has."""
    waiting = {parcel.model for parcel in start.parcels if parcel.release_s < 0}
    missing = waiting - {each.loaded for each in start.workers}
    return any(
        each.loaded not in waiting and each.running < 1 and any(each.swap_s[model] < inf for model in missing)
        for each in start.workers
    )


def _best(
    played: Mapping[str, PlayOutcome], costs: Mapping[str, float], loaded: tuple[int, ...], last: str, best: str
) -> str:
    """Return the rule to follow. `best`: the one of least cost."""
    if costs.get(last, inf) <= costs[best] + _MARGIN:
        best = last
    quiet = [name for name, outcome in played.items() if outcome.models == loaded]
    if not quiet or best in quiet:
        return best
    calm = min(quiet, key=lambda name: costs[name])
    return calm if costs[calm] <= costs[best] + SWAP_MARGIN else best


def _start(
    backlogs: Sequence[TenantBacklog],
    claimed: Claims,
    workers: Sequence[FleetWorker],
    rates: ServiceRates,
    now: float,
) -> tuple[list[str], Start]:
    """Return the names of the models, and the fleet with these as numbers."""
    models = {piece.key.model for piece in claimed.pieces} | {worker.loaded for worker in workers if worker.loaded}
    models |= {model for backlog in backlogs for model in backlog.expected}
    names = sorted(model for model in models if any(worker.fits(model) for worker in workers))
    number = {name: at for at, name in enumerate(names)}
    starting = [_worker(worker, names, number, rates, now) for worker in workers]
    longest_s = max((seconds for each in starting for seconds in each.swap_s if seconds < inf), default=0.0)
    horizon_s = min(_HORIZON_MAX_S, max(_HORIZON_S, _SWAP_TIMES * longest_s))
    parcels = list(_waiting(backlogs, claimed, number, now))
    for tenant, backlog in enumerate(backlogs):
        is_entitled = claimed.expected_parts[backlog.tenant] > _CLAIMED_PART
        for model, expected in sorted(backlog.expected.items()):
            if model in number:
                parcels += _coming(tenant, number[model], expected, is_entitled, horizon_s / STEPS)
    parcels.sort(key=lambda each: each.release_s)
    demand = _demand(starting, parcels, len(names), horizon_s)
    reload_s = [
        min((each.swap_s[model] for each in starting if each.loaded != model), default=0.0)
        for model in range(len(names))
    ]
    trust = [_trust(backlog) for backlog in backlogs]
    beyond = _tenants_beyond(backlogs, claimed)
    had_late = [0.0 if each.tenant in beyond else each.begun.late / (each.begun.requests + _FEW) for each in backlogs]
    return names, Start(starting, parcels, len(names), len(backlogs), horizon_s, demand, reload_s, trust, had_late)


def _trust(backlog: TenantBacklog) -> float:
    """Return how much is known of a tenant: 1 - 0.5^n for n arrivals."""
    waiting = sum(group.requests for group in backlog.groups)
    return 1.0 - 0.5 ** max(waiting, sum(each.seen for each in backlog.expected.values()))


def _worker(
    worker: FleetWorker, names: Sequence[str], number: Mapping[str, int], rates: ServiceRates, now: float
) -> StartingWorker:
    hold_s = [worker.slots / rates.per_s(worker.kind, name) for name in names]
    swap_s = [worker.swap_to_s(name) for name in names]
    return StartingWorker(
        number.get(worker.loaded, -1), worker.loaded_at - now, worker.slots, worker.running, worker.drain_s,
        worker.swapping_s, worker.last_swap_s or 0.0, swap_s, hold_s, worker.paid_until - now,
    )  # fmt: skip


def _waiting(
    backlogs: Sequence[TenantBacklog], claimed: Claims, number: Mapping[str, int], now: float
) -> Iterator[Parcel]:
    tenants = {backlog.tenant: at for at, backlog in enumerate(backlogs)}
    for piece in claimed.pieces:
        if piece.key.model in number:
            each, model = piece.service / piece.requests, number[piece.key.model]
            due_s, tenant = piece.due_at - now, tenants[piece.tenant]
            yield Parcel(-1.0, due_s, model, tenant, piece.requests, each, piece.is_entitled)


def _coming(tenant: int, model: int, expected: Expected, is_entitled: bool, step_s: float) -> Iterator[Parcel]:
    """Yield the expected arrivals as whole requests at equal distances, the first one after half a distance."""
    due = 0.5
    for step in range(STEPS):
        due += expected.requests_per_s * step_s
        count = int(due)
        if count:
            due -= count
            at_s = step * step_s
            yield Parcel(at_s, at_s + expected.due_s, model, tenant, count, expected.service, is_entitled)


def _demand(workers: Sequence[StartingWorker], parcels: Sequence[Parcel], models: int, horizon_s: float) -> list[float]:
    """Return the entitled demand of each model, in workers."""
    found = [0.0] * models
    per_s = []
    for model in range(models):
        able = [each.slots / each.hold_s[model] for each in workers if each.swap_s[model] < inf]
        per_s.append(sum(able) / len(able))
    for parcel in parcels:
        if parcel.is_entitled:
            found[parcel.model] += parcel.requests * parcel.service / per_s[parcel.model] / horizon_s
    return found
