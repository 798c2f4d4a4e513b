"""A fluid model of the fleet, in which a rule for swaps is played forward over a horizon. Pure; no random numbers.

    parcels ──released──▶ queue of each model ──free slots──▶ worker ──▶ ends
                                                    ▲
                          rule, every DECIDE_S: worker, model

Requests are amounts, not objects. A worker has so many slots. A running request holds one for `hold_s` seconds in the
mean; so n running ones end at the rate n / hold_s. A worker that swaps starts no request, drains until less than half a
request runs, and then takes the swap's seconds. A request is in time if it starts before it is due.

Deviations from a real fleet: a request takes as long in a half-empty batch as in a full one; lengths are means, so a
drain ends when the expected number is below a half; arrivals of a forecast come at equal distances.

Within the queue of a model entitled requests start first, then those due first. This order does not depend on the rule
that is played, so it is found once for all of them (`Arrivals`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from operator import attrgetter, truediv
from typing import NamedTuple

from dispatcher.policies.planning.fleet import DRAIN_S, SWAPS_SAVED_S, paid_until, rest_s

STEPS = 60
DECIDE_S = 2.0
"""A rule decides as often as plans are made."""
_DRAINED = 0.5
_ALONE = 0.6
"""A request alone holds a slot for this part of the time in a full batch."""
_SHARED = 1.0 - _ALONE
_HOLD_MIN_S = 1e-9
_NO_SLOT = 1e-6
_NOTHING_LEFT = 1e-9
_MARGIN_S = 2.0
"""A request that starts less than this before it is due counts as late in part: the model is not exact."""
_LATE_MAX_S = 30.0
"""Lateness counts up to so many seconds, as much as _LATE_PART of a late request: what is lost is not pursued."""
_LATE_PART = 0.1


class Parcel(NamedTuple):
    """Requests of one tenant and model that are due together. Times are seconds from now. `service`: of one request."""

    release_s: float
    due_s: float
    model: int
    tenant: int
    requests: float
    service: float
    is_entitled: bool


@dataclass(frozen=True, slots=True)
class StartingWorker:
    """A worker at the start. `loaded`: its model or the one that it swaps to, -1 for none. `since_s`: when it was
    loaded. `running`: requests, that hold a slot for `running_hold_s` in the mean. `swapping_s`: the rest of a swap
    under way, without its drain. `last_swap_s`: what its last swap took, with the drain. `paid_s`: until when it pays
    for its swaps (fleet.py, `paid_until`). By model: `swap_s`, infinite for one that does not fit, and `hold_s`, the
    seconds that a service unit holds a slot."""

    loaded: int
    since_s: float
    slots: int
    running: float
    running_hold_s: float
    swapping_s: float
    last_swap_s: float
    swap_s: Sequence[float]
    hold_s: Sequence[float]
    paid_s: float = 0.0


class Released(NamedTuple):
    """Parcels of one model that arrive at one step, by their numbers in Arrivals, and the sums of them."""

    model: int
    numbers: list[int]
    requests: float
    work: float


class Arrivals(NamedTuple):
    """The parcels in the reverse order of their start within a queue, so that the last one of a sorted queue starts
    first: `parcels` has when each is due, the service of a request, and the owner, which is the tenant of an entitled
    parcel and the number of tenants for all others together. `requests`: of each parcel. `totals`: of each owner, 1 for
    one without any. `by_step`: what each step releases."""

    parcels: list[tuple[float, float, int]]
    requests: list[float]
    totals: list[float]
    by_step: list[list[Released]]


@dataclass(frozen=True)
class Start:
    """The fleet now. `parcels`: in the order of their release. By model: `demand` in workers, and `reload_s`, the
    seconds to load it again. By tenant, `trust`: the weight of its lateness, 0 to 1, empty if it is 1 for all, and
    `had_late`: the part of its requests that began late, empty for none."""

    workers: Sequence[StartingWorker]
    parcels: Sequence[Parcel]
    models: int
    tenants: int
    horizon_s: float
    demand: Sequence[float]
    reload_s: Sequence[float]
    trust: Sequence[float] = ()
    had_late: Sequence[float] = ()

    @cached_property
    def unit_s(self) -> list[float]:
        """Return by model the worker seconds of a service unit on the fastest worker."""
        return [
            min((each.hold_s[model] / each.slots for each in self.workers if each.swap_s[model] < inf), default=0.0)
            for model in range(self.models)
        ]

    @cached_property
    def per_s(self) -> list[list[float]]:
        """Return by worker and model the service units per second of a full worker."""
        return [[each.slots / max(_HOLD_MIN_S, hold_s) for hold_s in each.hold_s] for each in self.workers]

    @cached_property
    def arrivals(self) -> Arrivals:
        ordered = sorted(self.parcels, key=attrgetter("due_s"))
        ordered.sort(key=attrgetter("is_entitled"), reverse=True)
        ordered.reverse()
        owners = [each.tenant if each.is_entitled else self.tenants for each in ordered]
        by_step = self._by_step(ordered)
        totals = [0.0] * (self.tenants + 1)
        for number in (number for step in by_step for released in step for number in released.numbers):
            totals[owners[number]] += ordered[number].requests
        parcels = [(each.due_s, each.service, owner) for each, owner in zip(ordered, owners, strict=True)]
        return Arrivals(parcels, [each.requests for each in ordered], [total or 1.0 for total in totals], by_step)

    def _by_step(self, ordered: Sequence[Parcel]) -> list[list[Released]]:
        times = [number * (self.horizon_s / STEPS) for number in range(STEPS)]
        found: list[dict[int, list[int]]] = [{} for _ in times]
        for number, parcel in enumerate(ordered):
            step = bisect_left(times, parcel.release_s)
            if step < STEPS:
                found[step].setdefault(parcel.model, []).append(number)
        return [
            [
                Released(
                    model,
                    numbers,
                    sum(ordered[at].requests for at in numbers),
                    sum(ordered[at].requests * ordered[at].service for at in numbers),
                )
                for model, numbers in sorted(of_model.items())
            ]
            for of_model in found
        ]


@dataclass(slots=True)
class PlayedWorker:
    """`serves`: the model that it serves, -1 while it swaps or has none. `target`: the model that it has or will have.
    `until_s`: end of its loading. `swap_s`: of the swap that it drains for. `per_s`: by model (Start)."""

    start: StartingWorker
    slots: int
    per_s: Sequence[float]
    serves: int
    target: int
    since_s: float
    running: float
    hold_s: float
    until_s: float = inf
    swap_s: float = 0.0
    ordered_s: float = 0.0
    last_swap_s: float = 0.0
    paid_s: float = 0.0
    turn: float = 0.0
    """Requests that it has started since it has its model."""

    @property
    def is_swapping(self) -> bool:
        return self.serves != self.target

    @property
    def free(self) -> float:
        return 0.0 if self.serves < 0 else self.slots - self.running


class PlayOutcome(NamedTuple):
    """`late`: by tenant, the part of its entitled requests that is late, 0 to 1 + _LATE_PART. `surplus_late`: of all
    other requests. `models`: of each worker after the first decision. `swapping`: the part of the workers' time.
    `left`: the worker seconds of what waits at the end, as a part of the horizon and of the workers."""

    late: tuple[float, ...]
    surplus_late: float
    swapping: float
    left: float
    models: tuple[int, ...]


class Play:
    """One rule's run, in O(steps x (workers + models) + parcels). A rule reads the fields and calls `swap`."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.now_s = 0.0
        self.step_s = start.horizon_s / STEPS
        self.waiting = [0.0] * start.models
        """This counts the requests that wait, by model."""
        self.work = [0.0] * start.models
        """Their service."""
        self.workers = [_first_state(worker, per_s) for worker, per_s in zip(start.workers, start.per_s, strict=True)]
        self.covered = [0] * start.models
        """This counts the workers that have each model or get it."""
        self.per_s = [0.0] * start.models
        """Their service units per second."""
        for worker in self.workers:
            self._cover(worker, 1)
        self._arrivals = start.arrivals
        self._queues: list[list[int]] = [[] for _ in range(start.models)]
        """The numbers of the parcels that wait, by model. The last one starts first."""
        self._left = list(self._arrivals.requests)
        self._late = [0.0] * (start.tenants + 1)
        self._swapping_s = 0.0
        self._first_models: tuple[int, ...] = ()

    def head_due_s(self, model: int) -> float:
        """Return when the first waiting request of the model is due; infinity without one."""
        queue = self._queues[model]
        return self._arrivals.parcels[queue[-1]][0] if queue else inf

    def may_swap(self, worker: PlayedWorker, model: int) -> bool:
        """Return whether the worker may begin to swap to the model now (fleet.py, `rest_left_s`)."""
        target = worker.target
        if worker.serves != target or target == model:
            return False
        swap_s = worker.start.swap_s[model]
        if target < 0 or swap_s == inf:
            return swap_s < inf
        return self._has_rested(worker, swap_s)

    def _has_rested(self, worker: PlayedWorker, swap_s: float) -> bool:
        if self.waiting[worker.target] <= 0:
            return self.now_s >= worker.paid_s - SWAPS_SAVED_S
        return self.now_s - worker.since_s >= rest_s(worker.last_swap_s, swap_s)

    def find_rested(self, workers: Iterable[PlayedWorker]) -> list[PlayedWorker]:
        """Return the workers that may begin to swap to a model that takes no time to load."""
        return [
            worker
            for worker in workers
            if worker.serves == worker.target and (worker.target < 0 or self._has_rested(worker, 0.0))
        ]

    def swap(self, worker: PlayedWorker, model: int) -> None:
        """Begin a swap. A swap that takes no time is one of a millisecond."""
        self._cover(worker, -1)
        worker.serves, worker.target, worker.swap_s = -1, model, max(1e-3, worker.start.swap_s[model])
        self._cover(worker, 1)
        worker.turn, worker.ordered_s = 0.0, self.now_s

    def _cover(self, worker: PlayedWorker, count: int) -> None:
        if worker.target >= 0:
            self.covered[worker.target] += count
            self.per_s[worker.target] += count * worker.per_s[worker.target]

    def late_parts(self) -> list[float]:
        """Return by tenant what is late so far, as a part of its entitled requests of the whole play. It only grows."""
        return self._parts()[:-1]

    def run(self, decide: Callable[[Play], None]) -> PlayOutcome:
        """Play to the horizon."""
        for _ in self.steps(decide):
            pass
        return self.outcome()

    def steps(self, decide: Callable[[Play], None]) -> Iterator[int]:
        """Play step by step to the horizon, and yield how many are left; `outcome` comes after the last one."""
        next_s = 0.0
        for number, released in enumerate(self._arrivals.by_step):
            self.now_s = number * self.step_s
            self._release(released)
            if number:
                self._pass_step()
            if self.now_s >= next_s:
                if number == 0:
                    self._dispatch()
                decide(self)
                next_s += max(DECIDE_S, self.step_s)
            if number == 0:
                self._first_models = tuple(worker.target for worker in self.workers)
            self._dispatch()
            yield STEPS - 1 - number

    def outcome(self) -> PlayOutcome:
        """Return what came of it. Call it once."""
        left = self._left_s() / self.start.horizon_s / max(1, len(self.workers))
        self._count_rest()
        *late, surplus = self._parts()
        swapping = self._swapping_s / self.start.horizon_s / max(1, len(self.workers))
        return PlayOutcome(tuple(late), surplus, swapping, left, self._first_models)

    def _parts(self) -> list[float]:
        """Return what is late by owner, as a part of all its requests."""
        return list(map(truediv, self._late, self._arrivals.totals))

    def _release(self, released: Sequence[Released]) -> None:
        for model, numbers, requests, work in released:
            queue = self._queues[model]
            queue += numbers
            queue.sort()
            self.waiting[model] += requests
            self.work[model] += work

    def _pass_step(self) -> None:
        step_s, swapping = self.step_s, 0
        for worker in self.workers:
            running = worker.running
            if running:
                hold_s = worker.hold_s * (_ALONE + _SHARED * running / worker.slots)
                worker.running = running * (1.0 - step_s / hold_s) if hold_s > step_s else 0.0
            if worker.serves != worker.target:
                swapping += 1
                self._pass_swap(worker)
        self._swapping_s += step_s * swapping

    def _pass_swap(self, worker: PlayedWorker) -> None:
        now_s = self.now_s
        if worker.swap_s and (worker.running < _DRAINED or now_s - worker.ordered_s >= DRAIN_S):
            worker.running = 0.0
            worker.until_s, worker.swap_s = now_s + worker.swap_s, 0.0
        if worker.until_s <= now_s:
            worker.serves, worker.since_s, worker.until_s = worker.target, worker.until_s, inf
            worker.last_swap_s = worker.since_s - worker.ordered_s
            worker.paid_s = paid_until(worker.paid_s, worker.ordered_s, worker.last_swap_s)

    def _dispatch(self) -> None:
        """Start waiting requests in the free slots of the workers with their model."""
        left, late, parcels, now_s = self._left, self._late, self._arrivals.parcels, self.now_s
        for worker in self.workers:
            model, running = worker.serves, worker.running
            if model < 0 or not (queue := self._queues[model]):
                continue
            free = idle = worker.slots - running
            work, begun = 0.0, 0
            for number in reversed(queue):
                if free <= _NO_SLOT:
                    break
                due_s, service, owner = parcels[number]
                taken = left[number]
                if taken > free + _NOTHING_LEFT:
                    left[number] = taken - free
                    taken = free
                else:
                    begun += 1
                free -= taken
                work += taken * service
                if now_s - due_s > -_MARGIN_S:
                    late[owner] += taken * _late_part(now_s - due_s)
            if free < idle:
                del queue[len(queue) - begun :]
                worker.running = running + idle - free
                worker.hold_s = (running * worker.hold_s + work * worker.start.hold_s[model]) / worker.running
                worker.turn += idle - free
                self.waiting[model] = self.waiting[model] - (idle - free) if queue else 0.0
                self.work[model] = self.work[model] - work if queue else 0.0

    def _left_s(self) -> float:
        """Return the worker seconds of what waits."""
        return sum(work * self.start.unit_s[model] for model, work in enumerate(self.work))

    def _count_rest(self) -> None:
        """Count what waits at the end. It starts after what is before it, and after a swap if it needs one."""
        for model, queue in enumerate(self._queues):
            if not queue:
                continue
            at_s = self.start.horizon_s
            per_s = self.per_s[model]
            if not self.covered[model]:
                fitting = [each for each in self.workers if each.start.swap_s[model] < inf]
                at_s += min((each.start.swap_s[model] + each.hold_s for each in fitting), default=inf) + 10.0
                per_s = max((each.per_s[model] for each in fitting), default=0.0)
            for number in reversed(queue):
                left, (due_s, service, owner) = self._left[number], self._arrivals.parcels[number]
                self._late[owner] += left * _late_part(at_s - due_s if per_s else inf)
                at_s += left * service / per_s if per_s else 0.0


def _late_part(late_s: float) -> float:
    """Return how late a request counts that starts so many seconds after it is due: 0 to 1 + _LATE_PART."""
    if late_s >= _LATE_MAX_S:
        return 1.0 + _LATE_PART
    if late_s > 0.0:
        return 1.0 + _LATE_PART * late_s / _LATE_MAX_S
    return max(0.0, 1.0 + late_s / _MARGIN_S)


def _first_state(worker: StartingWorker, per_s: Sequence[float]) -> PlayedWorker:
    loaded = worker.loaded
    played = PlayedWorker(
        worker, worker.slots, per_s, loaded, loaded, worker.since_s, worker.running, worker.running_hold_s
    )
    played.last_swap_s, played.paid_s = worker.last_swap_s, worker.paid_s
    if worker.swapping_s > 0:
        played.serves = -1
        if worker.running <= _DRAINED:
            played.until_s = worker.swapping_s
        else:
            played.swap_s = worker.swapping_s
    return played
