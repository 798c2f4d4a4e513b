"""Earliest deadline first over the whole fleet: a worker swaps to the model of the request that is due first."""

from __future__ import annotations

from headgate.simulator.fleet.planners.head_first import HeadFirstPlanner
from headgate.simulator.fleet.planners.interface import planner
from headgate.simulator.requests import SimRequest


@planner("edf")
class EdfPlanner(HeadFirstPlanner):
    def key(self, request: SimRequest) -> float:
        return request.due_s
