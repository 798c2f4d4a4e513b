"""How many workers a model keeps, and which ones. Pure.

QLM (SoCC 2024, section 7) plans the requests that wait, and takes a model's last worker away when none does. Here a
model with entitled demand of ρ workers (backlog and forecast) keeps ceil(ρ / 0.8) workers, if the floors of all models
leave one worker of the fleet free. Otherwise it keeps floor(ρ), and models share the other workers in time: floors that
do not fit leave no worker for the other models.

A worker kept for its model is pinned: the plan does not swap it. Pins yield where entitled work of a model that is
loaded nowhere fits pinned workers only: the sum of the floors does not show which worker fits which model. A floor
above the workers that have the model loads nothing by itself: the plan swaps for lateness, and idle workers load such
models (idle.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import ceil, floor

from dispatcher.policies.planning.entitlement import HORIZON_S
from dispatcher.policies.planning.fleet import FleetWorker, ServiceRates

LOAD_MAX = 0.8
"""The part of a worker's time that entitled demand may take before its model keeps a further one."""
ROUNDING = 1e-9
"""0.8 / 0.8 workers are one, although the quotient may be just above 1."""


def model_floors(
    entitled_service: Mapping[str, float], workers: Sequence[FleetWorker], rates: ServiceRates
) -> dict[str, int]:
    """Return how many workers each model keeps; absent for none. `entitled_service`: within the horizon, by model."""
    demand, able = {}, {}
    for model, service in entitled_service.items():
        per_s = [rates.per_s(worker.kind, model) for worker in workers if worker.fits(model)]
        if per_s and service > 0:
            demand[model] = service / (HORIZON_S * sum(per_s) / len(per_s))
            able[model] = len(per_s)
    wide = {model: min(able[model], ceil(rho / LOAD_MAX - ROUNDING)) for model, rho in demand.items()}
    if sum(wide.values()) < len(workers):
        return {model: count for model, count in wide.items() if count}
    narrow = {model: min(able[model], floor(rho + ROUNDING)) for model, rho in demand.items()}
    return {model: count for model, count in narrow.items() if count}


def pinned(
    floors: Mapping[str, int], entitled: Collection[str], workers: Sequence[FleetWorker], rates: ServiceRates
) -> set[str]:
    """Return the names of the workers that keep their model: of each model the fastest, as many as its floor.

    `entitled`: the models with entitled work that waits.
    """
    found: set[str] = set()
    for model, count in floors.items():
        having = [worker for worker in workers if worker.loaded == model]
        having.sort(key=lambda worker: (-rates.per_s(worker.kind, model), worker.loaded_at, worker.name))
        found.update(worker.name for worker in having[:count])
    for model in sorted(set(entitled) - {worker.loaded for worker in workers}):
        able = {worker.name for worker in workers if worker.fits(model)}
        if able <= found:
            found -= able
    return found
