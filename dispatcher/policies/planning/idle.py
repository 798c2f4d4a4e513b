"""What workers without planned work load: deferred work. Pure.

A worker is idle if nothing runs on it, it has no order, and nothing waits for its model. Only such a worker swaps for
deferred work with slack. The rules of fleet.py hold for it too. A piece of deferred work goes where it ends first: to
the end of an order that ends with its own model, or to an idle worker, with the time of its swap.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from math import inf

from dispatcher.policies.planning.claims import Piece
from dispatcher.policies.planning.fleet import FleetWorker, ServiceRates, rest_left_s


@dataclass(slots=True)
class Tail:
    """The end of a worker's order: its last model, or the worker's if the order is empty, and the end in seconds."""

    model: str
    end_s: float


def place_deferred(
    pieces: Sequence[Piece],
    workers: Sequence[FleetWorker],
    rates: ServiceRates,
    tails: Mapping[str, Tail],
    models: MutableMapping[str, str],
    idle: Collection[str],
    now: float,
) -> list[tuple[str, Piece, float]]:
    """Return worker, piece and end in seconds of the pieces that have a place. Changes `tails` and `models`."""
    placed = []
    by_name = {worker.name: worker for worker in workers}
    for piece in pieces:
        model = piece.key.model
        having = [(tail.end_s, name) for name, tail in tails.items() if tail.model == model]
        ends_s, found = min(having, default=(inf, None))
        other = _fastest(model, workers, models, idle, now)
        if other is not None and tails[other].end_s + by_name[other].swap_to_s(model) < ends_s:
            models[other] = tails[other].model = model
            tails[other].end_s += by_name[other].swap_to_s(model)
            found = other
        if found is not None:
            tails[found].end_s += piece.service / rates.per_s(by_name[found].kind, model)
            placed.append((found, piece, tails[found].end_s))
    return placed


def _fastest(
    model: str, workers: Sequence[FleetWorker], models: Mapping[str, str], idle: Collection[str], now: float
) -> str | None:
    """Return the idle worker with the shortest swap to the model that may start now and keeps its model so far. That is
    another model."""
    able = [
        worker
        for worker in workers
        if worker.name in idle
        and models[worker.name] == worker.loaded != model
        and worker.fits(model)
        and rest_left_s(worker, model, now, is_waited_for=False) == 0.0
    ]
    return min(able, key=lambda each: (each.swap_to_s(model), each.name)).name if able else None
