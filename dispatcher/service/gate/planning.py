"""Plans the fleet of a leader: makes a picture of its shard, lets `offload` plan, and proposes the plan to the shard.

A plan is due when a miss is predicted, at most every REPLAN_S, and otherwise every SWEEP_S. While no worker can load
several models, or no throughput is known, nothing is planned. A planner that fails or takes too long costs a plan:
dispatch goes on without it, and the shard checks every plan that it gets, so two planners do no harm
(shard/swapping.py).

`PlannerProcess` is the offload of a real gate: the planner runs in a process of its own. A thread is not enough: the
planner is pure Python, and holds the interpreter's lock for milliseconds. Measured beside a plan of 200 groups on two
busy cores, a timer of 2 ms was late by 5.4 ms (P50) and 18 ms (P99) with a thread, and by 1.7 and 5.8 ms with a
process. The process starts with the first worker of several models, so a fleet of one model has none.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from math import inf
from multiprocessing import get_context
from typing import Any

from dispatcher.model.commands import Command
from dispatcher.policies.planning.history import ArrivalForecast
from dispatcher.policies.planning.plan import Plan, make_plan
from dispatcher.ports import Clock
from dispatcher.service.gate.follower import Offload
from dispatcher.service.gate.replica import Replica
from dispatcher.shard.proposals import PlanInput, plan_command, plan_input, predicts_miss, record_forecast
from dispatcher.shard.state.records import due_at

logger = logging.getLogger("headgate.planning")

_CHECK_S = 0.5
REPLAN_S = 2.0
SWEEP_S = 60.0
_PLAN_MAX_S = 8.0
"""A plan that takes longer is given up: its models would be used for the rest of 10 s only."""


class Planning:
    """Plans for one leader. `offload` runs the planner, in another process if the event loop must not pause."""

    def __init__(self, replica: Replica, clock: Clock, submit: Callable[[Command], None], offload: Offload) -> None:
        self._replica, self._clock, self._submit, self._offload = replica, clock, submit, offload
        self._planned_at = -inf
        self._last: Plan | None = None
        self._forecasts: dict[str, ArrivalForecast] = {}
        self._seen = replica.shard.state.arrivals
        """The arrivals up to this number are in the forecasts."""

    async def run(self) -> None:
        """Plan until cancelled."""
        is_started = False
        while True:
            await self._clock.sleep(_CHECK_S)
            if self._replica.shard.state.slots.can_swap:
                is_started = is_started or await self._start_planner()
                self._record_arrivals()
                if self._is_due():
                    self._planned_at = self._clock.monotonic()
                    await self._plan()

    async def _start_planner(self) -> bool:
        """Start the planner before a plan is due: a process takes a second, in which the first requests would wait."""
        try:
            async with asyncio.timeout(_PLAN_MAX_S):
                await self._offload(do_nothing)
        except Exception as error:  # a plan starts it too
            logger.warning("the planner does not start: %s", type(error).__name__)
        return True

    def _is_due(self) -> bool:
        state, age_s = self._replica.shard.state, self._clock.monotonic() - self._planned_at
        return age_s >= SWEEP_S or (age_s >= REPLAN_S and state.waiting > 0 and predicts_miss(state, self._clock.now()))

    async def _plan(self) -> None:
        picture = plan_input(self._replica.shard.state, self._forecasts, self._clock.now())
        if not picture.has_rate:
            return
        try:
            async with asyncio.timeout(_PLAN_MAX_S):
                self._last = await self._offload(plan_of, picture, self._last)
        except Exception as error:  # a plan is advice: the leader goes on without it
            logger.warning("no plan: %s", type(error).__name__)
            return
        self._record_forecast(self._last)
        self._submit(plan_command(self._last))

    def _record_forecast(self, plan: Plan) -> None:
        """Follow the plan's forecast, and log the error of the last one when it has ended."""
        state = self._replica.shard.state
        if record_forecast(state, plan, self._clock.now()):
            found = state.waits.forecasts.all
            logger.info(
                "plans forecast %.1f %% of %d requests in time, %.1f %% were; mean error of a tenant %.1f points",
                100 * found.forecast / max(1, found.requests), found.requests,
                100 * found.in_time / max(1, found.requests), 100 * found.error_part,
            )  # fmt: skip

    def _record_arrivals(self) -> None:
        """Count the calls that arrived since the last time and have not ended."""
        state = self._replica.shard.state
        for call in reversed(state.calls.values()):
            if call.arrival <= self._seen:
                break
            if not call.deferred:
                forecast = self._forecasts.setdefault(call.model, ArrivalForecast())
                due_s = max(0.0, due_at(call) - call.arrived_at)
                forecast.record(call.tenant.name, call.cost, call.arrived_at, due_s)
        self._seen = state.arrivals
        if len(self._forecasts) > len(state.waiting_models):
            self._forecasts = {model: each for model, each in self._forecasts.items() if state.slots.has(model)}


def plan_of(picture: PlanInput, last: Plan | None) -> Plan:
    """Return the plan of a picture. A function of a module, so that another process can call it."""
    return make_plan(picture.backlogs, picture.workers, picture.made_at, last=last)


def do_nothing() -> None:
    """A function of a module, which loads all that a plan needs."""


_PARENT_CHECK_S = 1.0
_NICENESS = 10


class PlannerProcess:
    """Calls functions of modules in one other process, one after the other."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Return the function's result. If the process has died or the caller gives up, the next call starts another
        process. Raises what the function raises, and BrokenProcessPool."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, get_context("spawn"), _begin, (os.getpid(),))
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)
        except (BrokenProcessPool, asyncio.CancelledError):
            self.stop()
            raise

    def stop(self) -> None:
        """End the process, also in the middle of its work."""
        pool, self._pool = self._pool, None
        if pool is not None:
            for process in list((pool._processes or {}).values()):
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)


def _begin(parent: int) -> None:
    """Let the gate's own processes go first, and end with the parent: after its last call, not at a Ctrl-C of the whole
    group, or soon after it was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os._exit(0)
