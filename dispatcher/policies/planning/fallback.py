"""Which worker loads a model that has waiting calls and is loaded nowhere. The rule needs no plan. Pure.

QLM (SoCC 2024, section 7) swaps models only by its plan. Here a plan is advice, which may be missing, old or wrong. So
the gate has this rule of its own:

- A model is *missing* if calls wait for it, and no worker has it or was ordered to load it.
- The missing models take turns: the one with the oldest last order goes first.
- It gets a worker that can load it and is past its residency. A worker keeps its model for RESIDENCY_SWAPS times the
  seconds of the next swap, and for RESIDENCY_S at least.

Bound: let n workers be able to load every one of k models with waiting calls. Then each of them is loaded within
ceil(k / n) x (residency + drain + swap). For between the moment at which a model becomes missing and its order, each
other model is ordered at most once: after this it comes later in turn. And each worker takes a new model once in that
time, because the gate gives a worker with an order no new calls.

Share of swaps: before a swap of s seconds a worker has its model for 5 s or longer. So at most a sixth of its time is
for swaps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from typing import NamedTuple

RESIDENCY_S = 10.0
RESIDENCY_SWAPS = 5.0
DRAIN_S = 30.0
"""For so many seconds a worker lets its running calls go on before it swaps."""
SWAP_MAX_S = 600.0
"""A worker does not load a model if the swap takes longer."""


class SwapWorker(NamedTuple):
    """A worker that serves and can swap now. `since`: when it got its model, or its last order ended, whichever is
    later, in Unix seconds. `swap_s`: the seconds of the swap to each model."""

    name: str
    model: str
    since: float
    running: int
    swap_s: Mapping[str, float]

    def may_load(self, model: str, now: float) -> bool:
        """Return whether the worker can load the model, and has had its own for long enough."""
        swap_s = self.swap_s.get(model)
        return swap_s is not None and swap_s <= SWAP_MAX_S and now >= self.since + residency_s(swap_s)


class ModelLoad(NamedTuple):
    worker: str
    model: str


def residency_s(swap_s: float) -> float:
    """Return for how long a worker keeps its model before a swap of so many seconds."""
    return max(RESIDENCY_S, RESIDENCY_SWAPS * swap_s if isfinite(swap_s) else 0.0)


def fallback_loads(
    missing: Collection[str],
    ordered_at: Mapping[str, float],
    workers: Sequence[SwapWorker],
    wanted: Collection[str],
    copies: Mapping[str, int],
    now: float,
) -> list[ModelLoad]:
    """Return the models that workers should load now, at most one for each worker.

    `ordered_at`: when each model was last ordered. `wanted`: the models with waiting calls. `copies`: how many workers
    have each model or are loading it. Workers with a model that is not needed are taken first.
    """
    free = {worker.name: worker for worker in workers}
    left = Counter(copies)
    loads: list[ModelLoad] = []
    for model in sorted(missing, key=lambda each: (ordered_at.get(each, 0.0), each)):
        able = [worker for worker in free.values() if worker.may_load(model, now)]
        if able:
            worker = min(able, key=lambda each: (_loss(each, wanted, left), each.swap_s[model], each.since, each.name))
            del free[worker.name]
            left[worker.model] -= 1
            loads.append(ModelLoad(worker.name, model))
        if not free:
            break
    return loads


def _loss(worker: SwapWorker, wanted: Collection[str], copies: Mapping[str, int]) -> tuple[bool, bool, int]:
    """Return what is lost if the worker swaps, least first: the only copy of a wanted model, a copy of one, and the
    calls that run."""
    is_wanted = worker.model in wanted
    return is_wanted and copies[worker.model] <= 1, is_wanted, worker.running
