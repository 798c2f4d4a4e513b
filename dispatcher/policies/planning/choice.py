"""Chooses the rule that the fleet follows until the next plan, by playing each forward (forward.py). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

from dispatcher.policies.planning.claims import Claims, TenantBacklog
from dispatcher.policies.planning.fleet import FleetWorker, ServiceRates
from dispatcher.policies.planning.forward import STEPS, Outcome, Parcel, Play, Start, StartingWorker
from dispatcher.policies.planning.rules import rules

_HORIZON_S, _HORIZON_MAX_S = 60.0, 240.0
_SWAP_TIMES = 4.0
_MARGIN = 0.02
_SWAP_MARGIN = 0.03
_MEAN, _SURPLUS, _SWAPPING, _LEFT = 0.5, 0.02, 0.01, 0.3


class Choice(NamedTuple):
    rule: str
    models: dict[str, str]
    costs: dict[str, float]


def choose(
    backlogs: Sequence[TenantBacklog],
    claimed: Claims,
    workers: Sequence[FleetWorker],
    rates: ServiceRates,
    now: float,
    last: str,
    planned: Mapping[str, str],
) -> Choice:
    names, start = _start(backlogs, claimed, workers, rates, now)
    number = {name: at for at, name in enumerate(names)}
    first = [number.get(planned[worker.name], -1) for worker in workers]
    played = {rule.name: Play(start).run(rule.decide) for rule in rules(start, first)}
    costs = {name: cost(outcome) for name, outcome in played.items()}
    best = min(costs, key=lambda name: costs[name])
    if last in costs and costs[last] <= costs[best] + _MARGIN:
        best = last
    now_models = tuple(each.loaded for each in start.workers)
    quiet = [name for name, outcome in played.items() if outcome.models == now_models]
    if quiet and best not in quiet:
        calm = min(quiet, key=lambda name: costs[name])
        if costs[calm] <= costs[best] + _SWAP_MARGIN:
            best = calm
    models = {
        worker.name: names[model] if model >= 0 else worker.loaded
        for worker, model in zip(workers, played[best].models, strict=True)
    }
    return Choice(best, models, costs)


def cost(outcome: Outcome) -> float:
    late = outcome.late
    mean = sum(late) / max(1, len(late))
    return max(late, default=0.0) + _MEAN * mean + _SURPLUS * outcome.surplus_late + _SWAPPING * outcome.swapping + _LEFT * outcome.left


def _start(
    backlogs: Sequence[TenantBacklog],
    claimed: Claims,
    workers: Sequence[FleetWorker],
    rates: ServiceRates,
    now: float,
) -> tuple[list[str], Start]:
    models = {piece.key.model for piece in claimed.pieces}
    models |= {model for backlog in backlogs for model in backlog.expected}
    models |= {worker.loaded for worker in workers if worker.loaded}
    names = sorted(model for model in models if any(worker.fits(model) for worker in workers))
    number = {name: at for at, name in enumerate(names)}
    tenant = {backlog.tenant: at for at, backlog in enumerate(backlogs)}
    starting = [_worker(worker, names, number, rates, now) for worker in workers]
    swaps = [s for each in starting for s in each.swap_s if s < inf]
    horizon_s = min(_HORIZON_MAX_S, max(_HORIZON_S, _SWAP_TIMES * max(swaps, default=0.0)))
    parcels: list[Parcel] = []
    for piece in claimed.pieces:
        if piece.key.model in number:
            parcels.append(
                Parcel(
                    -1.0, piece.due_at - now, number[piece.key.model], tenant[piece.tenant], piece.requests,
                    piece.service / piece.requests, piece.is_entitled,
                )
            )
    step_s = horizon_s / STEPS
    for backlog in backlogs:
        for model, expected in sorted(backlog.expected.items()):
            if model not in number:
                continue
            entitled = claimed.expected_parts[backlog.tenant]
            mass, given = 0.5, 0
            for step in range(STEPS):
                mass += expected.requests_per_s * step_s
                count = int(mass)
                if count:
                    mass -= count
                    given += count
                    release = step * step_s
                    is_entitled = entitled > 0.5
                    parcels.append(
                        Parcel(
                            release, release + expected.due_s, number[model], tenant[backlog.tenant], count,
                            expected.service, is_entitled,
                        )
                    )
    parcels.sort(key=lambda each: each.release_s)
    demand = [0.0] * len(names)
    for parcel in parcels:
        if parcel.is_entitled:
            per_s = [each.slots / each.hold_s[parcel.model] for each in starting if each.swap_s[parcel.model] < inf]
            demand[parcel.model] += parcel.requests * parcel.service / max(1e-9, sum(per_s) / len(per_s)) / horizon_s
    reload_s = [
        min((each.swap_s[model] for each in starting if each.loaded != model), default=0.0)
        for model in range(len(names))
    ]
    return names, Start(starting, parcels, len(names), len(tenant), horizon_s, demand, reload_s)


def _worker(
    worker: FleetWorker, names: Sequence[str], number: dict[str, int], rates: ServiceRates, now: float
) -> StartingWorker:
    hold_s = [worker.slots / rates.per_s(worker.kind, name) for name in names]
    return StartingWorker(
        number.get(worker.loaded, -1), worker.loaded_at - now, worker.slots, worker.running, worker.drain_s,
        worker.swapping_s, worker.last_swap_s or 0.0, [worker.swap_to_s(name) for name in names], hold_s,
    )
