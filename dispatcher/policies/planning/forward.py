"""A fluid model of the fleet, in which a rule for swaps is played forward over a horizon. Pure; no random numbers.

    parcels ──released──▶ queue of each model ──free slots──▶ worker ──▶ ends
                                                    ▲
                          rule, every DECIDE_S: worker, model

Requests are amounts, not objects. A worker has so many slots. A running request holds one for `hold_s` seconds in the
mean; so n running ones end at the rate n / hold_s. A worker that swaps starts no request, drains until less than half a
request runs, and then takes the swap's seconds. A request is in time if it starts before it is due.

Deviations from a real fleet: a request takes as long in a half-empty batch as in a full one; lengths are means, so a
drain ends when the expected number is below a half; arrivals of a forecast come at equal distances.

Within the queue of a model entitled requests start first, then those due first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from dispatcher.policies.planning.fleet import DRAIN_S, SWAPS_SAVED_S, WATCH_MAX_S, paid_until, rest_s, watch_s

STEPS = 60
DECIDE_S = 2.0
"""A rule decides as often as plans are made."""
_DRAINED = 0.5
_ALONE = 0.6
"""A request alone holds a slot for this part of the time in a full batch."""
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


@dataclass(frozen=True, slots=True)
class Start:
    """The fleet now. `parcels`: in the order of their release. By model: `demand` in workers, and `reload_s`, the
    seconds to load it again. `observed_s`: since arrivals are seen. By tenant, `trust`: the weight of its lateness, 0
    to 1; empty if it is 1 for all."""

    workers: Sequence[StartingWorker]
    parcels: Sequence[Parcel]
    models: int
    tenants: int
    horizon_s: float
    demand: Sequence[float]
    reload_s: Sequence[float]
    observed_s: float = inf
    trust: Sequence[float] = ()


@dataclass(slots=True)
class PlayedWorker:
    """`model`: what it serves, -1 while it loads or has none. `target`: what it has or will have. `until_s`: end of its
    loading. `swap_s`: of the swap that it drains for."""

    start: StartingWorker
    model: int
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
        return self.swap_s > 0.0 or self.until_s < inf

    @property
    def free(self) -> float:
        return 0.0 if self.is_swapping or self.model < 0 else self.start.slots - self.running


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
        self.workers = [_first(each) for each in start.workers]
        self.unit_s = [
            min((each.hold_s[model] / each.slots for each in start.workers if each.swap_s[model] < inf), default=0.0)
            for model in range(start.models)
        ]
        self._queues: list[list[tuple[bool, float, int]]] = [[] for _ in range(start.models)]
        self._left = [parcel.requests for parcel in start.parcels]
        self._next = 0
        self._late = [0.0] * start.tenants
        self._counted = [0.0] * start.tenants
        self._surplus = [0.0, 0.0]
        self._swapping_s = 0.0
        self._first_models: tuple[int, ...] = ()

    def head_due_s(self, model: int) -> float:
        """Return when the first waiting request of the model is due; infinity without one."""
        queue = self._queues[model]
        return queue[0][1] if queue else inf

    def may_swap(self, worker: PlayedWorker, model: int) -> bool:
        """Return whether the worker may begin to swap to the model now (fleet.py, `rest_left_s`)."""
        swap_s = worker.start.swap_s[model]
        if worker.is_swapping or swap_s == inf or worker.target == model:
            return False
        if worker.target < 0:
            return True
        observed_s = self.start.observed_s + self.now_s
        if observed_s < WATCH_MAX_S and observed_s < watch_s(swap_s, self.start.reload_s[worker.target]):
            return False
        if self.waiting[worker.target] <= 0:
            return self.now_s >= worker.paid_s - SWAPS_SAVED_S
        return self.now_s - worker.since_s >= rest_s(worker.last_swap_s, swap_s)

    def swap(self, worker: PlayedWorker, model: int) -> None:
        """Begin a swap. A swap that takes no time is one of a millisecond."""
        worker.target, worker.swap_s = model, max(1e-3, worker.start.swap_s[model])
        worker.turn, worker.ordered_s = 0.0, self.now_s

    def coverage(self) -> list[int]:
        """Return by model how many workers have it or get it."""
        found = [0] * self.start.models
        for worker in self.workers:
            if worker.target >= 0:
                found[worker.target] += 1
        return found

    def late_parts(self, requests: Sequence[float]) -> list[float]:
        """Return by tenant what is late so far, as a part of its entitled requests of the whole play. It only grows."""
        return [late / count if count else 0.0 for late, count in zip(self._late, requests, strict=True)]

    def run(self, decide: Callable[[Play], None]) -> PlayOutcome:
        """Play to the horizon."""
        for _ in self.steps(decide):
            pass
        return self.outcome()

    def steps(self, decide: Callable[[Play], None]) -> Iterator[None]:
        """Play step by step to the horizon; `outcome` comes after the last one."""
        next_s = 0.0
        for number in range(STEPS):
            self.now_s = number * self.step_s
            self._release()
            if number:
                for worker in self.workers:
                    self._pass_step(worker)
            if self.now_s >= next_s:
                if number == 0:
                    self._dispatch()
                decide(self)
                next_s += max(DECIDE_S, self.step_s)
            if number == 0:
                self._first_models = tuple(worker.target for worker in self.workers)
            self._dispatch()
            yield

    def outcome(self) -> PlayOutcome:
        """Return what came of it. Call it once."""
        left = self._left_s() / self.start.horizon_s / max(1, len(self.workers))
        self._count_rest()
        late = tuple(late / count if count else 0.0 for late, count in zip(self._late, self._counted, strict=True))
        surplus = self._surplus[0] / self._surplus[1] if self._surplus[1] else 0.0
        swapping = self._swapping_s / self.start.horizon_s / max(1, len(self.workers))
        return PlayOutcome(late, surplus, swapping, left, self._first_models)

    def _release(self) -> None:
        parcels = self.start.parcels
        while self._next < len(parcels) and parcels[self._next].release_s <= self.now_s:
            parcel = parcels[self._next]
            heappush(self._queues[parcel.model], (not parcel.is_entitled, parcel.due_s, self._next))
            self.waiting[parcel.model] += parcel.requests
            self.work[parcel.model] += parcel.requests * parcel.service
            self._next += 1

    def _pass_step(self, worker: PlayedWorker) -> None:
        if worker.is_swapping:
            self._swapping_s += self.step_s
        if worker.running and worker.hold_s > 0:
            hold_s = worker.hold_s * (_ALONE + (1.0 - _ALONE) * worker.running / worker.start.slots)
            worker.running = max(0.0, worker.running * (1.0 - min(1.0, self.step_s / hold_s)))
        elif worker.running:
            worker.running = 0.0
        if worker.swap_s and (worker.running < _DRAINED or self.now_s - worker.ordered_s >= DRAIN_S):
            worker.running, worker.model = 0.0, -1
            worker.until_s, worker.swap_s = self.now_s + worker.swap_s, 0.0
        if worker.until_s <= self.now_s:
            worker.model, worker.since_s, worker.until_s = worker.target, worker.until_s, inf
            worker.last_swap_s = worker.since_s - worker.ordered_s
            worker.paid_s = paid_until(worker.paid_s, worker.ordered_s, worker.last_swap_s)

    def _dispatch(self) -> None:
        for worker in self.workers:
            if worker.model >= 0 and not worker.is_swapping and self.waiting[worker.model] > 0:
                self._fill(worker)

    def _fill(self, worker: PlayedWorker) -> None:
        model, free = worker.model, worker.start.slots - worker.running
        queue, hold_s = self._queues[model], worker.start.hold_s[model]
        while queue and free > 1e-6:
            number = queue[0][2]
            parcel, left = self.start.parcels[number], self._left[number]
            taken = min(free, left)
            each_s = parcel.service * hold_s
            worker.hold_s = (worker.running * worker.hold_s + taken * each_s) / (worker.running + taken)
            worker.running += taken
            worker.turn += taken
            free -= taken
            self.waiting[model] -= taken
            self.work[model] -= taken * parcel.service
            self._count(parcel, taken, self.now_s)
            self._left[number] = left - taken
            if self._left[number] <= 1e-9:
                heappop(queue)
        if not queue:
            self.waiting[model] = self.work[model] = 0.0

    def _count(self, parcel: Parcel, requests: float, start_s: float) -> None:
        late_s = start_s - parcel.due_s
        late = min(1.0, max(0.0, 1.0 + late_s / _MARGIN_S))
        if late_s > 0:
            late += _LATE_PART * min(1.0, late_s / _LATE_MAX_S)
        if parcel.is_entitled:
            self._late[parcel.tenant] += requests * late
            self._counted[parcel.tenant] += requests
        else:
            self._surplus[0] += requests * late
            self._surplus[1] += requests

    def _left_s(self) -> float:
        """Return the worker seconds of what waits."""
        return sum(work * self.unit_s[model] for model, work in enumerate(self.work))

    def _count_rest(self) -> None:
        """Count what waits at the end. It starts after what is before it, and after a swap if it needs one."""
        for model, queue in enumerate(self._queues):
            if not queue:
                continue
            per_s, wait_s = 0.0, inf
            for worker in self.workers:
                if worker.target == model:
                    per_s += worker.start.slots / max(1e-9, worker.start.hold_s[model])
                if worker.start.swap_s[model] < inf:
                    wait_s = min(wait_s, worker.start.swap_s[model] + worker.hold_s)
            at_s = self.start.horizon_s
            if not per_s:
                at_s += wait_s + 10.0
                fitting = [each for each in self.workers if each.start.swap_s[model] < inf]
                per_s = max((each.start.slots / max(1e-9, each.start.hold_s[model]) for each in fitting), default=0.0)
            while queue:
                number = heappop(queue)[2]
                parcel, left = self.start.parcels[number], self._left[number]
                self._count(parcel, left, at_s if per_s else inf)
                at_s += left * parcel.service / per_s if per_s else 0.0


def _first(worker: StartingWorker) -> PlayedWorker:
    played = PlayedWorker(worker, worker.loaded, worker.loaded, worker.since_s, worker.running, worker.running_hold_s)
    played.last_swap_s, played.paid_s = worker.last_swap_s, worker.paid_s
    if worker.swapping_s > 0:
        played.swap_s = worker.swapping_s
        if worker.running <= _DRAINED:
            played.model, played.swap_s, played.until_s = -1, 0.0, worker.swapping_s
    return played
