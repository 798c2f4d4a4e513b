"""First come, first served over the whole fleet: a worker swaps to the model of the first request."""

from __future__ import annotations

from headgate.simulator.fleet.planners.head_first import HeadFirstPlanner
from headgate.simulator.fleet.planners.interface import planner
from headgate.simulator.requests import SimRequest


@planner("fcfs")
class FcfsPlanner(HeadFirstPlanner):
    def key(self, request: SimRequest) -> float:
        return request.number
