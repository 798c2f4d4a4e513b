"""Dispatches: a free slot is given to the call that is due first. Capacity first, then the choice."""

from __future__ import annotations

from dispatcher.model.facts import Dispatched
from dispatcher.policies.orders.queues import Call
from dispatcher.shard.choose import due_queue
from dispatcher.shard.decision import Decision


def dispatch_next(decision: Decision) -> bool:
    """Give a free slot to the call that is due first. False if there is no such slot or no such call."""
    state = decision.state
    for model in state.lanes.of if state.waiting else ():
        if state.slots.first(model) is not None:
            queue, lowest_vft = due_queue(state, model)
            if queue is not None:
                return dispatch(decision, queue.head(), lowest_vft)
    return False


def dispatch(decision: Decision, call: Call, lowest_vft: float) -> bool:
    """Dispatch the call, if a slot of its model is free. `lowest_vft`: of all waiting tenants."""
    state, tenant = decision.state, call.tenant
    worker = state.slots.best_for(call)
    if worker is None:
        return False
    in_profile, rate_per_s, clocks, virtual_time = state.order.charged(
        tenant, call.cost, state.at, state.virtual_time, state.scale(), lowest_vft
    )
    decision.add(
        Dispatched(
            call.id, worker.config.worker, call.attempt + 1, in_profile, rate_per_s, tenant.weight, clocks,
            virtual_time,
        )
    )  # fmt: skip
    return True
