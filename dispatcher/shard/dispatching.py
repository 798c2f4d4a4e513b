"""Dispatches: a free slot is given to the call that is due first. Capacity first, then the choice."""

from __future__ import annotations

from dispatcher.model.facts import Dispatched
from dispatcher.policies.orders.queues import Call
from dispatcher.shard.choose import first_queue
from dispatcher.shard.decision import Decision


def dispatch_next(decision: Decision) -> bool:
    """Give a free slot to the call that is due first. False if there is no such slot or no such call."""
    state = decision.state
    for model in state.lanes.of if state.waiting else ():
        if state.slots.first(model) is not None and (queue := first_queue(state, model)) is not None:
            return dispatch(decision, queue.head())
    return False


def dispatch(decision: Decision, call: Call) -> bool:
    """Dispatch the call, if a slot of its model is free."""
    state, tenant = decision.state, call.tenant
    worker = state.slots.best_for(call)
    if worker is None:
        return False
    charge = state.order.charged(
        tenant, call.cost, state.at, state.virtual_time, state.scale(), state.lanes.lowest_vft()
    )
    decision.add(
        Dispatched(
            call.id, worker.config.worker, call.attempt + 1, charge.in_profile, charge.rate_per_s, tenant.weight,
            charge.clocks, charge.virtual_time,
        )
    )  # fmt: skip
    return True
