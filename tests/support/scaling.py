"""A pool of workers in virtual time for scale(), loads, the cheapest fleet for a load, and a service that counts.

Work is a fluid in service units. Time goes in steps of a second, and a sweep decides once a minute, and at once when
work arrives while the desired number is 0. Workers start, fail to start, are interrupted and drain. The launches follow
the rules of ECS: while fewer workers exist than are desired, one is launched for each missing one, and a launch that
fails is repeated. Before the number falls, a worker retires as in dispatcher/operations/scaling.py: it serves
nothing for `drain_s`, and the next sweep lowers the number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil, cos, pi
from random import Random

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.fleet import FleetLoad, ServiceCount
from dispatcher.operations.worker_count import ScaleSettings, ScaleState, scale

SWEEP_S = 60
CAPACITY_PER_S = 1_000.0
"""Service units a second of one worker."""
RATE_TIME_S = 60.0


@dataclass(frozen=True, slots=True)
class World:
    """`start_s`: the shortest and longest start-up. `fails`: the part of the launches that fail, at the end of their
    start-up. `interrupted_per_hour`: of one worker."""

    start_s: tuple[float, float]
    fails: float = 0.0
    interrupted_per_hour: float = 0.0
    drain_s: float = 60.0


@dataclass(slots=True)
class Figures:
    """`worker_s`: paid seconds of workers. `late_service`: of the work that waited longer than `late_after_s`."""

    worker_s: float = 0.0
    arrived: float = 0.0
    served: float = 0.0
    late_service: float = 0.0
    wait_max_s: float = 0.0
    desired: list[int] = field(default_factory=list)
    launches: int = 0

    @property
    def turns(self) -> int:
        """Changes of the direction of scaling."""
        steps = [after - before for before, after in pairwise(self.desired)]
        moves = [step > 0 for step in steps if step]
        return sum(before != after for before, after in pairwise(moves))


@dataclass(slots=True)
class _Worker:
    serves_at: float
    fails: bool
    retired_at: float | None = None
    """None: it gets work."""


class Pool:
    def __init__(self, settings: ScaleSettings, world: World, seed: int, late_after_s: float = 60.0) -> None:
        self._settings, self._world, self._random = settings, world, Random(seed)
        self._late_after_s = late_after_s
        self._workers: list[_Worker] = []
        self._backlog: list[list[float]] = []
        """[arrival, service], the oldest first."""
        self._rate_per_s = self._done = 0.0
        self._state = ScaleState()
        self.desired = settings.floor
        self.figures = Figures()

    def run(self, arrivals: Sequence[float], after_s: int = 0) -> Figures:
        """Play the service that arrives in each second, and `after_s` seconds without arrivals."""
        for now, service in enumerate([*arrivals, *[0.0] * after_s]):
            self._arrive(now, service)
            if now % SWEEP_S == 0 or (self.desired == 0 and self._backlog):
                self._sweep(now)
            self._start_and_end(now)
            self._serve(now)
            self.figures.worker_s += len(self._workers)
        return self.figures

    def _arrive(self, now: int, service: float) -> None:
        self._rate_per_s += (service - self._rate_per_s) / RATE_TIME_S
        if service:
            self._backlog.append([now, service])
            self.figures.arrived += service

    def _ready(self, now: float) -> list[_Worker]:
        return [each for each in self._workers if each.serves_at <= now]

    def _serving(self, now: float) -> list[_Worker]:
        return [each for each in self._ready(now) if each.retired_at is None]

    def _sweep(self, now: int) -> None:
        ready = len(self._ready(now))
        holding = min(ready, ceil(self._done / CAPACITY_PER_S))
        waiting = {"standard": len(self._backlog)}
        measured = CAPACITY_PER_S if ready else 0.0
        service = sum(each for _, each in self._backlog)
        load = FleetLoad(ready, 0, holding, waiting, service, self._rate_per_s, measured)
        made = scale(self._settings, self._state, load, self.desired, len(self._workers), now)
        is_set = self._may_leave(now, made.workers, is_idle=not holding)
        self._state = made.state if is_set else replace(made.state, decided=self.desired)
        self.desired = made.workers if is_set else self.desired
        self.figures.desired.append(self.desired)

    def _may_leave(self, now: float, wanted: int, *, is_idle: bool) -> bool:
        """Return whether the number may be set: a worker that leaves has drained, or does not serve yet."""
        ready = self._ready(now)
        if wanted >= self.desired or len(ready) != self.desired:
            for each in ready if len(ready) <= wanted else []:
                each.retired_at = None
            return True
        leaver = min(ready, key=lambda each: (each.retired_at is None, -each.serves_at))
        leaver.retired_at = now if leaver.retired_at is None else leaver.retired_at
        return is_idle or now - leaver.retired_at >= self._world.drain_s

    def _start_and_end(self, now: int) -> None:
        world, random = self._world, self._random
        self._workers = [
            each
            for each in self._workers
            if not (each.fails and each.serves_at <= now)
            and not (each.serves_at <= now and random.random() < world.interrupted_per_hour / 3600)
        ]
        excess = max(0, len(self._workers) - self.desired)
        self._workers.sort(key=lambda each: (each.retired_at is None, -each.serves_at))
        del self._workers[:excess]
        for _ in range(self.desired - len(self._workers)):
            self.figures.launches += 1
            self._workers.append(_Worker(now + random.uniform(*world.start_s), random.random() < world.fails))

    def _serve(self, now: int) -> None:
        room = len(self._serving(now)) * CAPACITY_PER_S
        left = room
        while left > 0 and self._backlog:
            head = self._backlog[0]
            part = min(left, head[1])
            waited_s = now - head[0]
            self.figures.wait_max_s = max(self.figures.wait_max_s, waited_s)
            self.figures.late_service += part if waited_s > self._late_after_s else 0.0
            self.figures.served += part
            left, head[1] = left - part, head[1] - part
            if head[1] <= 1e-6:
                self._backlog.pop(0)
        self._done = room - left


DAY_S = 86_400
EVENT = 500.0
"""The service of one request."""


def arrivals(expected_per_s: list[float], random: Random) -> list[float]:
    """Return random arrivals of whole requests with these means."""
    return [EVENT * _count(each / EVENT, random) for each in expected_per_s]


def day(workers: float) -> list[float]:
    """Return a sine from 5 % to 100 % of the capacity of so many workers; the night is at both ends."""
    return [workers * CAPACITY_PER_S * (0.525 - 0.475 * cos(2 * pi * at / DAY_S)) for at in range(DAY_S)]


def bursts(workers: float, seconds: int, random: Random) -> list[float]:
    """Return a base of a tenth with bursts of 5 to 30 minutes, about one an hour."""
    found = [0.1 * workers * CAPACITY_PER_S] * seconds
    at = random.uniform(0, 3600)
    while at < seconds:
        length = random.uniform(300, 1800)
        for second in range(int(at), min(seconds, int(at + length))):
            found[second] = workers * CAPACITY_PER_S * 0.8
        at += length + random.expovariate(1 / 3600)
    return found


def flood(workers: float, quiet_s: int, busy_s: int, seconds: int) -> list[float]:
    """Return nothing, then the capacity of so many workers for `busy_s` seconds, then nothing."""
    return [workers * CAPACITY_PER_S if quiet_s <= at < quiet_s + busy_s else 0.0 for at in range(seconds)]


def _count(mean: float, random: Random) -> int:
    """Return a number with this mean: the sum of a Bernoulli's and the whole part, with a variance like Poisson's."""
    if mean > 30:
        return max(0, round(random.gauss(mean, mean**0.5)))
    left, count = random.expovariate(1.0), 0
    while left < mean:
        left += random.expovariate(1.0)
        count += 1
    return count


def oracle_worker_s(arrivals: Sequence[float], capacity_per_s: float, start_s: float, workers_min: int) -> float:
    """Return the paid seconds of the cheapest fleet that serves each minute's arrivals within the minute.

    Worker k is needed in each minute whose arrivals exceed the capacity of k - 1. Between two such times it stays if
    that costs less than another start-up of `start_s`. This is the optimum, since workers are alike and what one costs
    does not depend on the others. No launch fails and no worker is interrupted.
    """
    minutes = [sum(arrivals[begin : begin + 60]) / 60 for begin in range(0, len(arrivals), 60)]
    counts = [max(workers_min, ceil(each / capacity_per_s)) for each in minutes]
    return sum(_worker_s([count >= level for count in counts], start_s) for level in range(1, max(counts) + 1))


def _worker_s(needed: Sequence[bool], start_s: float) -> float:
    total, idle_s = 0.0, start_s
    for is_needed in needed:
        if is_needed:
            total, idle_s = total + 60 + min(idle_s, start_s), 0.0
        else:
            idle_s += 60
    return total


@dataclass
class CountedService:
    """`fails`: the requests that are refused. `kept` and `leavers`: the arguments of each `keep`."""

    desired: int = 0
    fails: set[str] = field(default_factory=set)
    reads: int = 0
    sets: list[int] = field(default_factory=list)
    kept: list[list[str]] = field(default_factory=list)
    leavers: list[str] = field(default_factory=list)

    async def count(self) -> ServiceCount:
        self._check("count")
        self.reads += 1
        return ServiceCount(self.desired, self.desired)

    async def keep(self, workers: Sequence[str], leaver: str = "") -> None:
        self._check("keep")
        self.kept.append(sorted(workers))
        self.leavers.append(leaver)

    async def set(self, workers: int) -> None:
        self._check("set")
        self.desired = workers
        self.sets.append(workers)

    def _check(self, request: str) -> None:
        if request in self.fails:
            raise StoreUnavailable(f"no {request}")
