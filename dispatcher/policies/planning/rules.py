"""Rules for swaps, which are played forward (forward.py): each is a simple planner that could run the fleet. Pure.

A rule keeps a number of workers for the models with the greatest demand (`kept`), and lets the others share:

    exhaust   a worker stays until nothing waits for its model, then takes the missing model that is due first; after
              _TURN_BATCHES batches it counts as empty. This is QLM's order (SoCC 2024, section 4).
    edf       as soon as the first request due finds no slot for its model, the worker with a free slot and the fewest
              running requests swaps.
    slack     a worker swaps when the missing model would otherwise be late.
    stay      no worker swaps.

If all workers are kept it is a partition, which serves fewer models. A rule may also serve one of the missing models
and leave the others: the one that is due first may be 15 s away, and another one 2 s. A rule may also begin with the
models of the annealed plan (search.py) and go on from there. In a fleet of unlike workers, two of them may exchange
their models.

A worker that must give up its model has the fewest running requests, and of those the model that is back soonest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from math import inf

from dispatcher.policies.planning.forward import DECIDE_S, Play, PlayedWorker, Start

_TURN_BATCHES = 4.0
_HURRY_S = DECIDE_S + 2.0
_EVERY_COUNT = 4
"""In a larger fleet a quarter, a half and three quarters of the workers keep a model, and not every number."""
_EXCHANGES = 3
_VISITS = 2
"""For so many of the missing models there is a rule that loads no other missing one."""


@dataclass(slots=True)
class Rule:
    """`kept`: by worker, the model that it has for the whole play; -1 for a worker that shares."""

    name: str
    sharing: str
    kept: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    """This gives each worker its model of the first decision. It is empty if the rule decides."""
    left_out: frozenset[int] = frozenset()
    """These models are not loaded again."""

    def decide(self, play: Play) -> None:
        """Begin the swaps that are due."""
        if self.first and play.now_s == 0.0:
            for worker, model in zip(play.workers, self.first, strict=True):
                if model >= 0 and play.may_swap(worker, model):
                    play.swap(worker, model)
            return
        for worker, model in zip(play.workers, self.kept, strict=True):
            if model >= 0 and worker.target != model and play.may_swap(worker, model):
                play.swap(worker, model)
        if self.sharing == "stay" or not any(play.waiting):
            return
        shared = [worker for worker, model in zip(play.workers, self.kept, strict=True) if model < 0]
        _SHARING[self.sharing](play, shared, self.left_out)


def _missing(play: Play, left_out: frozenset[int]) -> list[int]:
    """Return the models that requests wait for and no worker has, the first due first."""
    found = [model for model, waiting in enumerate(play.waiting) if waiting > 0 and not play.covered[model]]
    if left_out:
        found = [model for model in found if model not in left_out]
    return sorted(found, key=play.head_due_s)


def _behind(play: Play) -> list[int]:
    """Return the models of workers that can't start all that waits in time."""
    return [
        model
        for model, waiting in enumerate(play.waiting)
        if waiting > 0
        and play.covered[model]
        and play.work[model] / play.per_s[model] > play.head_due_s(model) - play.now_s
    ]


def _loss(play: Play, worker: PlayedWorker) -> tuple[float, float]:
    """Return what a swap of the worker loses: the time of a drain, and that to get its model back."""
    return worker.running, play.start.reload_s[worker.target] if worker.target >= 0 else 0.0


def _find_exhausted(play: Play, shared: list[PlayedWorker]) -> list[PlayedWorker]:
    """Return the workers that serve and have no request for their model, or have had their turn."""
    waiting = play.waiting
    return [
        worker
        for worker in shared
        if worker.serves == worker.target
        and (worker.serves < 0 or waiting[worker.serves] <= 0 or worker.turn >= _TURN_BATCHES * worker.slots)
    ]


def _exhaust(play: Play, shared: list[PlayedWorker], left_out: frozenset[int]) -> None:
    missing, behind = _missing(play, left_out), None
    for worker in sorted(_find_exhausted(play, shared), key=lambda each: _loss(play, each)):
        own = play.waiting[worker.target] if worker.target >= 0 else 0.0
        own_due = play.head_due_s(worker.target) if own > 0 else inf
        wanted = next((model for model in missing if play.may_swap(worker, model)), None)
        if wanted is None and own <= 0:
            behind = _behind(play) if behind is None else behind
            wanted = next((model for model in behind if play.may_swap(worker, model)), None)
        if wanted is not None and (own <= 0 or play.head_due_s(wanted) < own_due):
            play.swap(worker, wanted)
            missing, behind = _missing(play, left_out), None
        elif own > 0:
            worker.turn = 0.0


def _edf(play: Play, shared: list[PlayedWorker], left_out: frozenset[int]) -> None:
    ready = [worker for worker in play.find_rested(shared) if worker.free >= 1.0]
    if not ready:
        return
    open_slots = [0.0] * play.start.models
    for worker in play.workers:
        if worker.target >= 0:
            open_slots[worker.target] += worker.slots - (worker.running if worker.serves >= 0 else 0.0)
    waiting = [model for model, count in enumerate(play.waiting) if count > 0 and model not in left_out]
    waiting.sort(key=play.head_due_s)
    for model in waiting:
        if open_slots[model] >= play.waiting[model]:
            continue
        able = [each for each in ready if play.may_swap(each, model)]
        if not able:
            return
        play.swap(min(able, key=lambda each: _loss(play, each)), model)


def _slack(play: Play, shared: list[PlayedWorker], left_out: frozenset[int]) -> None:
    ready = play.find_rested(shared)
    for model in _missing(play, left_out) + _behind(play) if ready else ():
        able = [each for each in ready if play.may_swap(each, model)]
        if not able:
            continue

        def regret(each: PlayedWorker) -> tuple[bool, float, float, float]:
            own = each.target
            lonely = own >= 0 and play.covered[own] <= 1 and (play.waiting[own] > 0 or play.start.demand[own] > 0)
            return lonely, -play.head_due_s(own) if lonely else 0.0, *_loss(play, each)

        worker = min(able, key=regret)
        own = worker.target
        needed_s = worker.start.swap_s[model] + 2.0 * worker.hold_s * (worker.running > 0.5) + _HURRY_S
        is_free = own < 0 or (play.waiting[own] <= 0 and worker.running < 0.5)
        if is_free or play.head_due_s(model) - play.now_s <= needed_s:
            play.swap(worker, model)


_SHARING = {"exhaust": _exhaust, "edf": _edf, "slack": _slack}


def rules(start: Start, first: list[int]) -> list[Rule]:
    """Return the rules to play. `first`: by worker, the model of the annealed plan."""
    workers, keeping = len(start.workers), _keeping(start)
    none = [-1] * workers
    found = [Rule("stay", "stay", none)]
    few = range(1, workers) if workers <= _EVERY_COUNT else (workers // 4, workers // 2, workers * 3 // 4)
    for count in (0, *few):
        kept = _place(start, keeping[:count])
        found += [Rule(f"{sharing} {count}", sharing, kept) for sharing in _SHARING]
    found.append(Rule("partition", "stay", _place(start, keeping)))
    if any(each.hold_s != start.workers[0].hold_s for each in start.workers):
        found.append(Rule("fast partition", "stay", _place_fast(start, keeping)))
    if any(model >= 0 and model != each.loaded for model, each in zip(first, start.workers, strict=True)):
        found += [Rule(f"plan {sharing}", sharing, none, first) for sharing in ("stay", "exhaust", "slack")]
    found += [Rule(f"slack only {model}", "slack", none, left_out=others) for model, others in _visits(start)]
    found += [Rule(f"exchange {one} {two}", "stay", none, first) for one, two, first in _exchanges(start)]
    return found


def _visits(start: Start) -> list[tuple[int, frozenset[int]]]:
    """Return missing models that requests wait for, those that are loaded soonest first, each with the other ones."""
    loaded = {worker.loaded for worker in start.workers}
    missing = {parcel.model for parcel in start.parcels if parcel.release_s < 0} - loaded
    if len(missing) < 2:
        return []
    absent = set(range(start.models)) - loaded
    soonest = sorted(missing, key=lambda model: (start.reload_s[model], model))
    return [(model, frozenset(absent - {model})) for model in soonest[:_VISITS]]


def _exchanges(start: Start) -> list[tuple[int, int, list[int]]]:
    """Return pairs of unlike workers, with the models of all if the two exchange theirs: the _EXCHANGES pairs that gain
    most, if a faster worker is worth the demand of its model for each worker with it."""
    copies = Counter(worker.loaded for worker in start.workers)
    having: dict[tuple[int, tuple[float, ...]], int] = {}
    for at, worker in enumerate(start.workers):
        if worker.loaded >= 0:
            having.setdefault((worker.loaded, tuple(worker.hold_s)), at)

    def worth(at: int, model: int) -> float:
        worker = start.workers[at]
        fits = worker.swap_s[model] < inf
        return start.demand[model] / copies[model] * worker.slots / worker.hold_s[model] if fits else -inf

    found = []
    for one, two in combinations(having.values(), 2):
        first, second = start.workers[one].loaded, start.workers[two].loaded
        gain = worth(two, first) + worth(one, second) - worth(one, first) - worth(two, second)
        if first != second and gain > 0:
            models = [worker.loaded for worker in start.workers]
            models[one], models[two] = second, first
            found.append((gain, one, two, models))
    found.sort(key=lambda each: (-each[0], each[1:3]))
    return [(one, two, models) for _, one, two, models in found[:_EXCHANGES]]


def _keeping(start: Start) -> list[int]:
    """Return as many models as workers, those with the most demand for each worker that they have so far first."""
    given = [0] * start.models
    found = []
    for _ in start.workers:
        best = max(
            range(start.models), key=lambda model: (start.demand[model] / (given[model] + 1), -model), default=-1
        )
        if best < 0 or start.demand[best] <= 0:
            break
        given[best] += 1
        found.append(best)
    return found


def _place(start: Start, models: list[int]) -> list[int]:
    """Return by worker the model that it keeps: workers that have it before others."""
    kept = [-1] * len(start.workers)
    open_models = []
    for model in models:
        having = [at for at, each in enumerate(start.workers) if kept[at] < 0 and each.loaded == model]
        if having:
            kept[min(having, key=lambda at: start.workers[at].hold_s[model])] = model
        else:
            open_models.append(model)
    for model in open_models:
        able = [at for at, each in enumerate(start.workers) if kept[at] < 0 and each.swap_s[model] < inf]
        if able:
            chosen = min(
                able,
                key=lambda at: (
                    start.workers[at].loaded in models,
                    start.workers[at].hold_s[model],
                    start.workers[at].running,
                    at,
                ),
            )
            kept[chosen] = model
    return kept


def _place_fast(start: Start, models: list[int]) -> list[int]:
    """Return by worker the model that it keeps: each in turn gets the fastest worker that is left."""
    workers, kept = start.workers, [-1] * len(start.workers)
    for model in models:
        able = [at for at, each in enumerate(workers) if kept[at] < 0 and each.swap_s[model] < inf]
        if able:
            seconds = {at: workers[at].hold_s[model] / workers[at].slots for at in able}
            kept[min(able, key=lambda at: (seconds[at], workers[at].loaded != model, at))] = model
    return kept
