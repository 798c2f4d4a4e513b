"""How many workers a pool should have. Pure: time, state and settings go in, a decision comes out.

Let c be the measured capacity of a worker, S the measured time from an order to a worker that serves, B the service
that waits and A the service that arrives in a second. A worker that is ordered now helps from now + S on. Until then
the R workers that serve do R c S, and each worker that is starting does c (S - its remaining start-up). So

    left    = max(0, B + A S - what they do until now + S)          service units
    needed  = ceil((A + left / _CLEAR_S) / (_LOAD_MAX c))           workers

Work that the present fleet and the starting workers do in time therefore asks for none. Rules around it:

- Entitled work: the tenants' entitlements add up to the demand, at most the largest fleet (planning/entitlement.py).
  So B and A are all demand, except deferred calls with slack, and `workers_max` is the bound.
- Scale-out is immediate. Scale-in takes one worker away at a time: only if fewer sufficed for `hold_s`, and the worker
  before it is gone. The number is never below what the running calls need.
- While no capacity is measured, work asks for one worker.
- A start-up that takes longer than S counts as begun anew. One that takes longer than 2 S has failed: then a backlog
  asks for no further workers, because these would fail too. The desired number stays, and ECS tries again.
- An interrupted worker is replaced by ECS, because the desired number stays; it counts as starting.
- If 0 was decided and the number is above, a process woke the pool (scaling.py). The worker stays for its start-up and
  the hold after that, because the request that woke the pool may come back only then.
- A pool of which nothing waits, runs or arrives needs none, if it may scale to zero.

QLM (SoCC 2024, section 9) adds workers if its program has no solution; start-up and scale-in are not in it. The window
of the hold is that of Kubernetes' horizontal autoscaler (its stabilization window), with one worker at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Annotated, ClassVar

from dispatcher.model.fleet import FleetLoad
from dispatcher.policies.bounds import Bounds

_WORKERS_MOST = 1_000
_CLEAR_S = 300.0
"""A backlog is worked off within this time after a start-up."""
_LOAD_MAX = 0.8
"""The part of a worker's capacity that arrivals may use."""
_IDLE_LOAD = 0.01
"""Arrivals that load a worker less than this count as none."""
_SPARE = 0.9
"""A worker leaves only if the others would use at most this part of _LOAD_MAX: otherwise noise brings it back."""
_START_MIN_S = 30.0
_START_MAX_S = 900.0
"""A measured start-up counts within these bounds. A longer one is a launch that failed and was repeated."""
_START_FALL = 0.3
"""A shorter start-up moves the expected one by this part of the difference; a longer one replaces it."""
_ROUNDING = 1e-9


@dataclass(frozen=True)
class ScaleSettings:
    """Settings of a pool's number of workers, each a variable of its process (settings/config.py). Times are in
    seconds."""

    workers_min: Annotated[int, Bounds(0, _WORKERS_MOST)] = 0
    """The smallest number of workers. 0: one worker, unless the pool may scale to zero."""
    workers_max: Annotated[int, Bounds(1, _WORKERS_MOST)] = _WORKERS_MOST
    """The largest number of workers. With HEADGATE_ECS_SERVICE it must be set, because each worker costs money."""
    scale_to_zero: bool = False
    """Whether an idle pool may have no worker. It needs HEADGATE_WORKERS_MIN 0."""
    worker_start_s: Annotated[float, Bounds(above=0, high=3600)] = 300.0
    """The expected time from a worker's launch until it serves. The sweep replaces it by what it measures."""
    hold_s: ClassVar[float] = 600.0
    """Fewer workers must suffice for this long before one leaves."""

    @property
    def floor(self) -> int:
        return self.workers_min if self.scale_to_zero else max(1, self.workers_min)


@dataclass(frozen=True, slots=True)
class ScaleState:
    """What a decision remembers of those before it. A new state is safe: its hold begins anew."""

    starts: tuple[float, ...] = ()
    """When each worker that does not serve yet was ordered, the oldest first, in Unix seconds."""
    start_s: float = 0.0
    """The expected start-up; 0 before the first decision."""
    service_per_s: float = 0.0
    """The last measured capacity of a worker; 0 if none was measured."""
    needs: tuple[tuple[float, int], ...] = ()
    """(time, workers needed) within the hold, the largest first; a later one that is as large replaces those before."""
    decided: int = 0
    """The number of the last decision."""
    since: float = inf
    """The time of the first decision, in Unix seconds."""


@dataclass(frozen=True, slots=True)
class ScaleDecision:
    workers: int
    """The number to set: within the bounds, and never below what runs work."""
    needed: int
    """The number that the load needs now, before hold and bounds."""
    state: ScaleState


def scale(
    settings: ScaleSettings, state: ScaleState, load: FleetLoad, desired: int, existing: int, now: float
) -> ScaleDecision:
    """Return the number of workers to set.

    `desired`: the number that is set now. `existing`: the workers that run, starting and draining ones included, as the
    service counts them. `now` in Unix seconds.
    """
    is_woken = desired > 0 == state.decided and state.since < inf
    state = _reconcile(settings, state, load, desired, now)
    needed = _needed_workers(state, load, desired, now, _LOAD_MAX)
    spared = _needed_workers(state, load, desired, now, _SPARE * _LOAD_MAX)
    state = replace(state, needs=_within_hold(state.needs, now - settings.hold_s, spared, now))
    if is_woken:
        state = replace(state, needs=_within_hold(state.needs, now - settings.hold_s, desired, now + state.start_s))
    bounded = min(settings.workers_max, max(settings.floor, needed))
    if bounded > desired:
        added = (now,) * (bounded - desired)
        return ScaleDecision(bounded, needed, replace(state, starts=(*state.starts, *added), decided=bounded))
    held = max(*(count for _, count in state.needs), load.holding)
    lowest = min(settings.workers_max, max(settings.floor, held))
    if desired <= lowest or existing > desired or now - state.since < settings.hold_s:
        return ScaleDecision(desired, needed, replace(state, decided=desired))
    starts = state.starts[: max(0, desired - 1 - load.ready)]
    return ScaleDecision(desired - 1, needed, replace(state, starts=starts, decided=desired - 1))


def remaining_start_s(state: ScaleState, now: float) -> list[float]:
    """Return for each starting worker the expected rest of its start-up, in seconds."""
    return [state.start_s - (now - begun) % state.start_s for begun in state.starts]


def _reconcile(settings: ScaleSettings, state: ScaleState, load: FleetLoad, desired: int, now: float) -> ScaleState:
    """Return the state with the starting workers that there are now, and with what was measured since the last one."""
    missing = max(0, desired - load.ready)
    begun = len(state.starts) - missing
    start_s = state.start_s or settings.worker_start_s
    for ordered_at in state.starts[: max(0, begun)]:
        start_s = _update_start_s(start_s, now - ordered_at)
    starts = state.starts[max(0, begun) :] + (now,) * max(0, -begun)
    since = min(state.since, now)
    per_s = load.service_per_s or state.service_per_s
    return replace(state, starts=starts, start_s=start_s, service_per_s=per_s, since=since)


def _update_start_s(start_s: float, measured_s: float) -> float:
    measured_s = min(_START_MAX_S, max(_START_MIN_S, measured_s))
    return max(measured_s, start_s + _START_FALL * (measured_s - start_s))


def _needed_workers(state: ScaleState, load: FleetLoad, desired: int, now: float, load_max: float) -> int:
    capacity_per_s, start_s = state.service_per_s, state.start_s
    if _is_idle(load, capacity_per_s):
        return 0
    if not capacity_per_s:
        return 1
    until_then = load.ready * start_s + sum(start_s - rest_s for rest_s in remaining_start_s(state, now))
    left = max(0.0, load.waiting_service + load.arriving_per_s * start_s - until_then * capacity_per_s)
    full_per_s = load_max * capacity_per_s
    for_arrivals = max(1, _whole(load.arriving_per_s / full_per_s))
    needed = max(for_arrivals, _whole((load.arriving_per_s + left / _CLEAR_S) / full_per_s))
    has_failed = any(now - begun > 2 * start_s for begun in state.starts)
    return max(for_arrivals, min(needed, desired)) if has_failed else needed


def _is_idle(load: FleetLoad, capacity_per_s: float) -> bool:
    return not any(load.waiting.values()) and not load.holding and load.arriving_per_s <= _IDLE_LOAD * capacity_per_s


def _whole(workers: float) -> int:
    return ceil(workers - _ROUNDING)


def _within_hold(
    needs: Iterable[tuple[float, int]], since: float, needed: int, now: float
) -> tuple[tuple[float, int], ...]:
    """Return the needs after `since` with the present one, without those that it covers."""
    return (*((at, count) for at, count in needs if at > since and count > needed), (now, needed))
