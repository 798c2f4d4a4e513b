"""Every planner, by the name that `headgate simulate --planner` takes."""

from __future__ import annotations

from headgate.simulator.fleet.planners import baselines, plan, qlm
from headgate.simulator.fleet.planners.interface import PLANNERS as PLANNERS

__all__ = ["PLANNERS", "baselines", "plan", "qlm"]
