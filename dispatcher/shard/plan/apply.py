"""Checks a plan against the present state, and keeps it as a fact. A plan is advice: what is wrong in it is dropped.

A plan is dropped as a whole if no worker can swap, if it is from the future, if it is not newer than the last one, or
if it is older than MODELS_S. Of another plan these parts are dropped: absent workers, models that their workers cannot
load, groups that it does not have, and what is more than the log has room for.
"""

from __future__ import annotations

from math import isfinite

from dispatcher.model.commands import Plan
from dispatcher.model.facts import Planned
from dispatcher.model.fleet import GROUPS_MAX, ORDER_MAX, WorkerPlan
from dispatcher.shard.decision import Decision
from dispatcher.shard.state.state import State

MODELS_S = 10.0
"""For so long a plan's models are used. After this each worker keeps its model."""
ORDER_S = 30.0
"""For so long a plan's order is used."""
SKEW_S = 2.0
"""The clocks of two processes may differ by so much (rule 10)."""


def planned(decision: Decision, command: Plan) -> None:
    """Write the plan, unless it is useless."""
    state = decision.state
    if not state.slots.can_swap or not _is_new(state, command.made_at):
        return
    groups = command.groups[:GROUPS_MAX]
    workers = (_fitting_part(state, each, len(groups)) for each in command.workers)
    kept = {each.worker: each for each in workers if each is not None}
    if kept:
        decision.add(Planned(command.made_at, tuple(kept.values()), groups))


def planned_models(state: State) -> dict[str, str]:
    """Return the model of each worker in the plan, while the plan is fresh."""
    plan = state.plan
    if plan is None or state.at - plan.made_at > MODELS_S:
        return {}
    return {each.worker: each.model for each in plan.workers}


def _is_new(state: State, made_at: float) -> bool:
    last = state.plan.made_at if state.plan is not None else 0.0
    return isfinite(made_at) and last < made_at <= state.at + SKEW_S and state.at - made_at <= MODELS_S


def _fitting_part(state: State, plan: WorkerPlan, groups: int) -> WorkerPlan | None:
    """Return the part of a worker's plan that fits the state; None if nothing does."""
    worker = state.workers.get(plan.worker)
    if worker is None or plan.model not in worker.swap_s:
        return None
    return plan._replace(order=tuple(number for number in plan.order if 0 <= number < groups)[:ORDER_MAX])
