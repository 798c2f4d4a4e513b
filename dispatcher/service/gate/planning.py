"""Plans the fleet of a leader: makes a picture of its shard, lets `offload` plan, and proposes the plan to the shard.

A plan is due when a miss is predicted, at most every REPLAN_S, and otherwise every SWEEP_S. While no worker can load
several models, or no throughput is measured, nothing is planned. A planner that fails or takes too long costs a plan:
dispatch goes on without it, and the shard checks every plan that it gets, so two planners do no harm
(shard/plan/apply.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf

from dispatcher.model.commands import Command
from dispatcher.policies.planning.forecast import ArrivalForecast
from dispatcher.policies.planning.plan import Plan, make_plan
from dispatcher.ports import Clock
from dispatcher.service.gate.follower import Offload
from dispatcher.service.gate.replica import Replica
from dispatcher.shard.proposals import PlanInput, plan_command, plan_input, predicts_miss

logger = logging.getLogger("headgate.planning")

CHECK_S = 0.5
REPLAN_S = 2.0
SWEEP_S = 60.0
PLAN_MAX_S = 8.0
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
        while True:
            await self._clock.sleep(CHECK_S)
            if self._replica.shard.state.slots.can_swap:
                self._record_arrivals()
                if self._is_due():
                    self._planned_at = self._clock.monotonic()
                    await self._plan()

    def _is_due(self) -> bool:
        state, age_s = self._replica.shard.state, self._clock.monotonic() - self._planned_at
        return age_s >= SWEEP_S or (age_s >= REPLAN_S and state.waiting > 0 and predicts_miss(state, self._clock.now()))

    async def _plan(self) -> None:
        picture = plan_input(self._replica.shard.state, self._forecasts, self._clock.now())
        if not picture.is_measured:
            return
        try:
            async with asyncio.timeout(PLAN_MAX_S):
                self._last = await self._offload(plan_of, picture, self._last)
        except Exception as error:  # a plan is advice: the leader goes on without it
            logger.warning("no plan: %s", type(error).__name__)
            return
        self._submit(plan_command(self._last))

    def _record_arrivals(self) -> None:
        """Count the calls that arrived since the last time and have not ended."""
        state = self._replica.shard.state
        for call in reversed(state.calls.values()):
            if call.arrival <= self._seen:
                break
            if not call.deferred:
                forecast = self._forecasts.setdefault(call.model, ArrivalForecast())
                forecast.record(call.tenant.name, call.cost, call.arrived_at)
        self._seen = state.arrivals
        if len(self._forecasts) > len(state.waiting_models):
            self._forecasts = {model: each for model, each in self._forecasts.items() if state.slots.has(model)}


def plan_of(picture: PlanInput, last: Plan | None) -> Plan:
    """Return the plan of a picture. A function of a module, so that another process can call it."""
    return make_plan(picture.backlogs, picture.workers, picture.made_at, last=last)
