"""How long a worker keeps its model, and what it loads if no plan helps a model that waits. Pure.

QLM (SoCC 2024, section 7) plans on the backlog alone: it swaps a model out when its queue is empty and soon back in.
Here a worker swaps to a model only when its own model has been loaded for

    max(10 s, 5 s_m)    while requests wait for the loaded model
    5 s_m               otherwise

where s_m is the swap time of the new model. So a swap of s seconds follows at least 5 s seconds without a swap, and
swaps take at most a sixth of a worker's time, whatever arrives. An idle worker therefore waits too, but not the 10 s:
they keep a batch of requests together, and it has none. With swaps of 0.1 s it swaps after half a second.

A worker without a model may load one at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import ceil

from dispatcher.policies.planning.fleet import FleetWorker

RESIDENCY_S = 10.0
SWAP_TIMES = 5.0
DRAIN_S = 30.0
"""A swap waits at most this long for running streams."""
CLOCK_SKEW_S = 60.0
"""A model that is loaded since a time further in the future than this has a wrong time, and is not kept for it."""


def held_s(worker: FleetWorker, model: str, now: float, is_waited_for: bool) -> float:
    """Return the seconds until the worker may start the swap to a model that fits it.

    `is_waited_for`: whether requests wait for the worker's loaded model.
    """
    if worker.loaded in ("", model) or worker.loaded_at > now + CLOCK_SKEW_S:
        return 0.0
    residency_s = _residency_s(worker.swap_to_s(model), is_waited_for)
    return max(0.0, worker.loaded_at + residency_s - now)


def _residency_s(swap_s: float, is_waited_for: bool) -> float:
    return max(RESIDENCY_S if is_waited_for else 0.0, SWAP_TIMES * swap_s)


def fallback_models(
    waiting_by_model: Mapping[str, float], workers: Sequence[FleetWorker], now: float, drain_s: float = DRAIN_S
) -> dict[str, str]:
    """Return the model that each of some workers must start to load now, whatever a plan says. It needs no plan.

    `waiting_by_model`: for each model with waiting requests, the Unix time since which requests wait for it while no
    worker has it loaded: the arrival of the first one, or the time at which the last worker began to swap it out. For
    a loaded model the time is not used. Leave out requests of a deferred class with slack (entitlement.py).

    Invariant, for M models that wait and W workers that fit them all, if every result is carried out before any other
    swap of these workers: a model is loaded at most ceil(M / W) P after it began to wait. P is the residency, the drain
    and the swap for the longest swap time, and the time between two calls.

    The model that has waited longest is the first. Each worker swaps at least once in P, so the i-th model is loaded
    ceil(i / W) P after all workers begin to serve this order. Until then a plan decides freely. So they begin for the
    i-th model only when it has waited (ceil(M / W) - ceil(i / W)) P: at once if there is a worker for every model.
    """
    loaded = {worker.loaded for worker in workers}
    fitting = {model for model in waiting_by_model if any(worker.fits(model) for worker in workers)}
    absent = sorted(fitting - loaded, key=lambda model: (waiting_by_model[model], model))
    if not absent:
        return {}
    period_s = max(_period_s(worker, model, drain_s) for worker in workers for model in absent if worker.fits(model))
    rounds = ceil(len(fitting) / len(workers))
    overdue = 0
    for number, model in enumerate(absent, 1):
        patience_s = (rounds - ceil(number / len(workers))) * period_s
        overdue = number if now - waiting_by_model[model] >= patience_s else overdue
    return assign(absent[:overdue], workers, now, waiting_by_model)


def assign(
    models: Sequence[str], workers: Sequence[FleetWorker], now: float, waited_for: Collection[str]
) -> dict[str, str]:
    """Return a worker for each model, in their order, as far as workers may swap now.

    First workers with a model that no request waits for, then with one that another worker has too, then those that
    have theirs longest.
    """
    assigned: dict[str, str] = {}
    copies: dict[str, int] = {}
    for worker in workers:
        copies[worker.loaded] = copies.get(worker.loaded, 0) + 1
    for model in models:
        able = [
            worker
            for worker in workers
            if worker.name not in assigned
            and worker.fits(model)
            and held_s(worker, model, now, worker.loaded in waited_for) == 0.0
        ]
        if able:
            chosen = min(able, key=lambda each: _reluctance(each, model, copies, waited_for))
            assigned[chosen.name] = model
            copies[chosen.loaded] -= 1
    return assigned


def _reluctance(
    worker: FleetWorker, model: str, copies: Mapping[str, int], waited_for: Collection[str]
) -> tuple[bool, bool, float, float, str]:
    return (
        worker.loaded in waited_for,
        copies[worker.loaded] <= 1,
        worker.loaded_at,
        worker.swap_to_s(model),
        worker.name,
    )


def _period_s(worker: FleetWorker, model: str, drain_s: float) -> float:
    swap_s = worker.swap_to_s(model)
    return _residency_s(swap_s, True) + drain_s + swap_s
