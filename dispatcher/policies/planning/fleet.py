"""The workers as the planner sees them: how fast each kind serves each model, and how long each keeps its model. Pure.

QLM (SoCC 2024, section 7) plans on the backlog alone: it swaps a model out when its queue is empty and soon back in.
Here a plan swaps a worker only when (`rest_left_s`)

    its model has been loaded for max(4 s, s, d)    while requests wait for the loaded model
    its swaps of a minute are not used up           otherwise

where s is the time of the swap, and d what the last swap took, from the order to the report of the model, with the
drain. d is measured, so a wrong belief about swaps lasts for one swap. The 4 s keep a batch of requests together.

A worker without waiting requests for its model has a budget: each second of a swap is paid with a second of service
before or after it, and SWAPS_SAVED_S seconds of swaps may be saved up (`paid_until`). So a worker that was quiet may
load one model after the other for a sweep of rare requests, and swaps take half of the time in the long run.

If the time of the last swap is unknown, a model stays for max(10 s, s), or s (`held_s`). So it does beside a plan for
the swaps of `fallback_models`, as their bound counts on it, but for one case (`_assign`). Without a plan both rests
must be over (`turn_left_s`).
With 10 s for plans, and with rests of idle workers, simpler planners were better for every tenant
(benchmarks/results/planner_dominance.md).

A worker without a model may load one at once.

If no plan helps a model that waits, `fallback_models` says what workers load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from math import ceil, inf, isfinite, sqrt
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class FleetWorker:
    """A worker that can load several models, one at a time.

    `kind`: workers of one kind serve equally fast. `loaded`: its model, "" for none. `loaded_at`: since when, in Unix
    seconds. A worker that swaps has its new model, since the expected end of the swap. `free_s`: until the swap and the
    requests that run now have ended, if the worker stays full. `drain_s`: until they have ended if no other one begins:
    what a swap costs beside its own time. `slots`: requests that run at once;
    `running`: those that run now. `swapping_s`: the rest of a swap under way, without its drain.
    `last_swap_s`: what its last swap took, with its drain; 0 if it has not swapped, None if that is not known.
    `paid_until`: until when it pays for its swaps with service, in Unix seconds (the function of this name).

    `swap_s`: seconds to make each model the loaded one, 0 for the loaded one; a model that is absent, or has an
    infinite time, does not fit. `service_per_s`: measured service units per second by model; unknown if absent or not a
    positive finite number. `expected_per_s`: the same as the worker extrapolates it, for models with which it was never
    full.

    Raises ValueError for an impossible number.
    """

    name: str
    kind: str
    loaded: str
    loaded_at: float
    swap_s: Mapping[str, float]
    free_s: float
    service_per_s: Mapping[str, float]
    slots: int
    drain_s: float = 0.0
    running: int = 0
    swapping_s: float = 0.0
    last_swap_s: float | None = None
    paid_until: float = 0.0
    expected_per_s: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isfinite(self.loaded_at):
            raise ValueError(f"worker {self.name!r} is loaded since {self.loaded_at!r}; a finite time is needed")
        for name, seconds in (("free_s", self.free_s), ("drain_s", self.drain_s)):
            if not 0 <= seconds < inf:
                raise ValueError(f"worker {self.name!r}: {name} must be finite and not negative, not {seconds!r}")
        if not all(each >= 0 for each in self.swap_s.values()):
            raise ValueError(f"worker {self.name!r} has a swap time that is negative or no number")
        if self.slots < 1:
            raise ValueError(f"worker {self.name!r} has {self.slots} slots; it needs at least one")

    def fits(self, model: str) -> bool:
        """Return whether the model is loaded or can be loaded."""
        return self.swap_to_s(model) < inf

    def known_per_s(self, model: str) -> float:
        """Return the measured rate of the model, or the expected one; 0 if neither is known."""
        rates = (each.get(model, 0.0) for each in (self.service_per_s, self.expected_per_s))
        return next((rate for rate in rates if 0 < rate < inf), 0.0)

    def swap_to_s(self, model: str) -> float:
        """Return the seconds of a swap to the model: 0 if it is loaded, infinite if it does not fit."""
        return 0.0 if model == self.loaded else self.swap_s.get(model, inf)


class ServiceRates:
    """Service units per second, by kind of worker and model: the mean of what is measured on the kind's workers, or
    without any of what they expect.

    Without either it is the mean of the model's on other kinds, and without that, of all. The measured ones go first.
    """

    def __init__(self, workers: Sequence[FleetWorker], models: Iterable[str]) -> None:
        names = sorted(set(models))
        expected, measured = (
            [
                (worker.kind, name, rate)
                for name in names
                for worker, rates in zip(workers, of_workers, strict=True)
                if 0 < (rate := rates.get(name, 0.0)) < inf
            ]
            for of_workers in (
                [worker.expected_per_s for worker in workers],
                [worker.service_per_s for worker in workers],
            )
        )
        self._of_kind, self._of_model = dict[tuple[str, str], float](), dict[str, float]()
        for known in (expected, measured):
            self._of_kind |= _means(((kind, model), rate) for kind, model, rate in known)
            self._of_model |= _means((model, rate) for _, model, rate in known)
        self._of_all = _means(("", rate) for _, _, rate in measured or expected).get("", 0.0)

    @property
    def are_known(self) -> bool:
        """Whether any rate is measured or expected. Without one, no time can be planned."""
        return self._of_all > 0

    def per_s(self, kind: str, model: str) -> float:
        return self._of_kind.get((kind, model)) or self._of_model.get(model) or self._of_all


Key = TypeVar("Key")


def _means(pairs: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    found: dict[Key, list[float]] = {}
    for key, rate in pairs:
        found.setdefault(key, []).append(rate)
    return {key: sum(rates) / len(rates) for key, rates in found.items()}


RESIDENCY_S = 10.0
_BATCH_S = 4.0
"""A plan keeps a model that requests wait for at least so long: a batch of them is served."""
_SWAP_TIMES = 1.0
_IDLE_REST = 0.5
SWAPS_SAVED_S = 60.0
"""A worker without waiting requests for its model may swap for so long without a rest."""
_SWAP_PART = 0.5
"""In the long run its swaps take this part of the time."""
_USE_PART_MAX = 0.5
"""A worker goes in place of one that uses its slots at least twice as much (`_assign`)."""
DRAIN_S = 30.0
"""A swap waits at most this long for running streams."""
PATIENCE_S = 4.0
"""Without a plan a missing model waits so long for one. A plan is made every 2 s while a model is missing."""
_FUTURE_MAX_S = 3600.0
"""A swap under way ends earlier. A model that is loaded since a later time has a wrong one, and is not kept for it."""


def held_s(worker: FleetWorker, model: str, now: float, is_waited_for: bool) -> float:
    """Return the seconds until the worker may start the swap to a model that fits it.

    `is_waited_for`: whether requests wait for the worker's loaded model.
    """
    if worker.loaded in ("", model) or worker.loaded_at > now + _FUTURE_MAX_S:
        return 0.0
    return max(0.0, worker.loaded_at + residency_s(worker.swap_to_s(model), is_waited_for) - now)


def rest_left_s(worker: FleetWorker, model: str, now: float, is_waited_for: bool) -> float:
    """Return the seconds until a plan may swap the worker. `is_waited_for`: as for held_s."""
    if worker.last_swap_s is None:
        return held_s(worker, model, now, is_waited_for)
    if worker.loaded in ("", model) or worker.loaded_at > now + _FUTURE_MAX_S:
        return 0.0
    if not is_waited_for:
        return max(0.0, worker.paid_until - SWAPS_SAVED_S - now)
    return max(0.0, worker.loaded_at + rest_s(worker.last_swap_s, worker.swap_to_s(model)) - now)


def rest_s(last_swap_s: float, swap_s: float) -> float:
    """Return how long a worker serves the requests that wait after a swap that took `last_swap_s` before one of
    `swap_s`; 0 without a last one."""
    return max(_BATCH_S, swap_s, last_swap_s) if last_swap_s > 0.0 else 0.0


def paid_until(before: float, ordered_at: float, took_s: float) -> float:
    """Return until when a worker pays for its swaps, after one that was ordered at `ordered_at` and took so long.
    `before`: the value before this swap. This is a token bucket as one time (GCRA)."""
    return max(before, ordered_at) + max(0.0, took_s) / _SWAP_PART


def turn_left_s(worker: FleetWorker, model: str, now: float, is_waited_for: bool) -> float:
    """Return the seconds until a gate without a plan may swap the worker: both rests are over, and one of half of the
    last swap in any case. Without the latter two_models was dominated."""
    left_s = max(held_s(worker, model, now, is_waited_for), rest_left_s(worker, model, now, is_waited_for))
    if worker.loaded in ("", model) or worker.loaded_at > now + _FUTURE_MAX_S:
        return left_s
    return max(left_s, worker.loaded_at + _IDLE_REST * (worker.last_swap_s or 0.0) - now)


def residency_s(swap_s: float, is_waited_for: bool) -> float:
    """Return how long a model stays loaded before a swap to another one that takes `swap_s`."""
    return max(RESIDENCY_S if is_waited_for else 0.0, _SWAP_TIMES * swap_s)


def fallback_models(
    waiting_by_model: Mapping[str, float],
    workers: Sequence[FleetWorker],
    now: float,
    drain_s: float = DRAIN_S,
    *,
    expected_drain_s: float = DRAIN_S,
    planned: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the model that each of some workers must have now, whatever a plan says. It needs no plan.

    A worker with another model starts to load it. A worker that has it already keeps it: it is needed next for a model
    that has waited long, and may not swap yet.

    `planned`: the model of each worker in the plan; None without a plan. A worker that is needed next for the very
    model that the plan gives it is not in the result, so it may load it as soon as the plan's rests allow: that is
    sooner.

    `waiting_by_model`: for each model with waiting requests, the Unix time since which requests wait for it while no
    worker has it loaded: the arrival of the first one, or the time at which the last worker began to swap it out. For
    a loaded model the time is not used. Leave out requests of a deferred class with slack (entitlement.py).

    Invariant, for M models that wait and W workers that fit them all, if every result is carried out, and other swaps
    keep held_s: a model is loaded at most ceil(M / W) P after it began to wait. P is the residency, the drain and the
    swap for the longest swap time, and the time between two calls. Without a plan the residency is at least the
    longest of the last swaps, with its drain. With a plan there is one residency and swap more if each worker has a
    model in use, and loading the soonest of these again takes longer than the missing ones: otherwise a model that
    was loaded for 40 s left after 5 s for one of 5 s. Swaps under way at the beginning to models that no request
    waits for, or that two workers load, come on top; and one P, if a worker begins to swap for another reason (a
    plan) before the fallback serves this order.

    The model that has waited longest is the first. Each worker swaps at least once in P, so the i-th model is loaded
    ceil(i / W) P after all workers begin to serve this order, and swaps that are under way then.

    Without a plan they begin after PATIENCE_S, in which a planner that lives makes one (`_assign_turns`). With a plan
    they begin as late as the invariant allows, and the plan decides until then: when the i-th model would be later than
    ceil(M / W) P if from now on each worker that may swap took the next model of this order. `expected_drain_s`: the
    time that a drain probably takes. If drains take longer, a model is later by that.
    """
    loaded = {worker.loaded for worker in workers}
    fitting = {model for model in waiting_by_model if any(worker.fits(model) for worker in workers)}
    absent = sorted(fitting - loaded, key=lambda model: (waiting_by_model[model], model))
    if not absent:
        return {}
    if planned is None:
        absent = [model for model in absent if now - waiting_by_model[model] >= PATIENCE_S]
        waiting = {model: waiting_by_model[model] for model in fitting}
        return _assign_turns(absent, workers, now, waiting, drain_s, expected_drain_s)
    absent = absent[: _overdue(absent, waiting_by_model, fitting, workers, now, drain_s, expected_drain_s)]
    return _assign(absent, workers, now, waiting_by_model, planned)


def _overdue(
    absent: Sequence[str],
    waiting_by_model: Mapping[str, float],
    models: Collection[str],
    workers: Sequence[FleetWorker],
    now: float,
    drain_s: float,
    expected_drain_s: float,
) -> int:
    """Return how many of the absent models must be loaded from now on, so that none is later than the bound.

    `models`: those that wait and fit."""
    swap_s = max(worker.swap_to_s(model) for worker in workers for model in absent if worker.fits(model))
    bound_s = ceil(len(models) / len(workers)) * (residency_s(swap_s, True) + drain_s + swap_s)
    back_s = min(
        _soonest_return_s(worker, workers) if worker.running or worker.loaded in models else 0.0 for worker in workers
    )
    if back_s > swap_s:
        bound_s += residency_s(back_s, True) + back_s
    loaded_in_s = _turns_s(len(absent), workers, now, swap_s, expected_drain_s + swap_s)
    overdue = 0
    for number, (model, in_s) in enumerate(zip(absent, loaded_in_s, strict=True), 1):
        overdue = number if now + in_s - waiting_by_model[model] >= bound_s else overdue
    return overdue


def _soonest_return_s(worker: FleetWorker, workers: Sequence[FleetWorker]) -> float:
    """Return the least time to load the worker's model again: on any other worker, or if there is none, what its last
    swap took with the drain, or the longest swap to another model. A plan counts workers of one kind (plan.py)."""
    others = [each.swap_to_s(worker.loaded) for each in workers if each.loaded != worker.loaded]
    fitting = [seconds for seconds in others if seconds < inf]
    own = [seconds for model, seconds in worker.swap_s.items() if model != worker.loaded and seconds < inf]
    return min(fitting) if fitting else worker.last_swap_s or max(own, default=0.0)


def _turns_s(count: int, workers: Sequence[FleetWorker], now: float, swap_s: float, turn_s: float) -> list[float]:
    """Return in how many seconds each of `count` models is loaded if each worker takes the next one when it may swap.

    `turn_s`: of a drain and a swap of `swap_s`. A worker may swap when its residency is over.
    """
    free_s = [
        0.0 if worker.loaded == "" else max(0.0, worker.loaded_at + residency_s(swap_s, True) - now)
        for worker in workers
    ]
    heapify(free_s)
    loaded_s = []
    for _ in range(count):
        loaded_s.append(free_s[0] + turn_s)
        heapreplace(free_s, loaded_s[-1] + residency_s(swap_s, True))
    return loaded_s


def _assign_turns(
    models: Sequence[str],
    workers: Sequence[FleetWorker],
    now: float,
    waiting: Mapping[str, float],
    drain_s: float,
    expected_drain_s: float,
) -> dict[str, str]:
    """Give the models workers without a plan, and return the model that these workers must have now.

    As `_assign`, but the seconds until a worker can swap have its drain in them, and a price if it is the only one with
    its model: P ceil(M / W) of `fallback_models`, times the root of the part of its slots that is in use. There is no
    price once the missing model has waited for so long. A missing model may also share the worker of another missing
    one: it then waits for the next turn there, if that is cheaper and within the same bound.

    Without the price two rare models took both workers from a busy one in turn: the worker that had just swapped
    rested, so the other one was taken (cases/planning/t7_two_models).
    """
    assigned: dict[str, str] = {}
    turns_s: dict[str, float] = {}
    """When a worker that is taken may swap again, in seconds."""
    copies = Counter(worker.loaded for worker in workers)

    def stay_s(worker: FleetWorker, model: str) -> float:
        """Return the seconds of a swap, and for which the model stays at least."""
        return worker.swap_to_s(model) + residency_s(worker.swap_to_s(model), True)

    def bound_s(worker: FleetWorker, model: str) -> float:
        """Return how long the model may be missing if all workers swap as slowly as this one."""
        return ceil(len(waiting) / len(workers)) * (stay_s(worker, model) + drain_s)

    def price_s(worker: FleetWorker, model: str) -> float:
        """Return the seconds until the worker can swap, with what it costs to take it."""
        waited_s, next_s = now - waiting[model], turns_s.get(worker.name)
        if next_s is not None:
            loaded_s = next_s + expected_drain_s + worker.swap_to_s(model)
            return next_s if waited_s + loaded_s <= bound_s(worker, model) else inf
        wait_s = turn_left_s(worker, model, now, worker.loaded in waiting) + worker.free_s
        if copies[worker.loaded] > 1 or not worker.running or waited_s >= bound_s(worker, model):
            return wait_s
        return wait_s + sqrt(min(1.0, worker.running / worker.slots)) * bound_s(worker, model)

    for model in models:
        fitting = [worker for worker in workers if worker.fits(model)]
        prices_s = {each.name: price_s(each, model) for each in fitting}
        chosen = min(fitting, key=lambda each: _reluctance(each, model, prices_s[each.name], waiting, copies))
        if chosen.name in turns_s:
            turns_s[chosen.name] += stay_s(chosen, model)
            continue
        wait_s = turn_left_s(chosen, model, now, chosen.loaded in waiting)
        assigned[chosen.name] = chosen.loaded if wait_s > 0.0 else model
        turns_s[chosen.name] = wait_s + chosen.free_s + stay_s(chosen, model)
        copies[chosen.loaded] -= 1
    return assigned


def _assign(
    models: Sequence[str],
    workers: Sequence[FleetWorker],
    now: float,
    waiting: Collection[str],
    planned: Mapping[str, str],
) -> dict[str, str]:
    """Give each model a worker, in their order, and return the model that these workers must have now.

    A worker that may not swap yet keeps its model until then, but not one for which this model is planned. First come
    workers that may swap soonest, and among them as `_reluctance` says. But if requests wait for the model of that one,
    and no other worker has it, one whose model no request waits for goes instead, also before its rest is over, if the
    part of its slots in use is at most _USE_PART_MAX of that one's. The first would have to come back, which is two
    swaps for one: with swaps of 50 s, victim in cases/planning/t7_two_models had 33 % in time without this, and has
    100. With a part of 1, in the first seed of the dear swaps of headgate/evidence/qlm/worst_off.py the worst-off
    tenant had 78 % for 88.
    """
    assigned: dict[str, str] = {}
    left_to_plan: set[str] = set()
    copies = Counter(worker.loaded for worker in workers)

    def wait_s(worker: FleetWorker, model: str) -> float:
        return held_s(worker, model, now, worker.loaded in waiting)

    def choose(able: Iterable[FleetWorker], model: str) -> FleetWorker | None:
        return min(able, key=lambda each: _reluctance(each, model, wait_s(each, model), waiting, copies), default=None)

    for model in models:
        able = [worker for worker in workers if worker.name not in assigned and worker.fits(model)]
        if (chosen := choose(able, model)) is not None:
            may_swap = wait_s(chosen, model) == 0.0
            if may_swap and copies[chosen.loaded] <= 1 and chosen.loaded in waiting:
                most = _USE_PART_MAX * chosen.running / chosen.slots
                quiet = [each for each in able if each.loaded not in waiting and each.loaded_at < now]
                chosen = choose((each for each in quiet if each.running / each.slots <= most), model) or chosen
            assigned[chosen.name] = model if may_swap else chosen.loaded
            copies[chosen.loaded] -= 1
            if not may_swap and planned.get(chosen.name) == model:
                left_to_plan.add(chosen.name)
    return {name: model for name, model in assigned.items() if name not in left_to_plan}


def _reluctance(
    worker: FleetWorker, model: str, price_s: float, waiting: Collection[str], copies: Mapping[str, int]
) -> tuple[float, bool, bool, float, float, str]:
    """Return what orders the workers that may load the model: the price, then whether requests wait for the worker's
    model, whether no other worker has it, since when it is loaded, and the swap."""
    is_last = copies[worker.loaded] <= 1
    return price_s, worker.loaded in waiting, is_last, worker.loaded_at, worker.swap_to_s(model), worker.name
