"""Every planner, by the name that `headgate simulate --planner` takes."""

from __future__ import annotations

from headgate.simulator.fleet.planners import edf, fcfs, plan, qlm, round_robin, shepherd, static
from headgate.simulator.fleet.planners.interface import PLANNERS as PLANNERS

__all__ = ["PLANNERS", "edf", "fcfs", "plan", "qlm", "round_robin", "shepherd", "static"]
