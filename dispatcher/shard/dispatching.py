"""Gives a free slot to the call that is due first. The slot is found first, then the call for its model."""

from __future__ import annotations

from dispatcher.model.facts import Dispatched, made
from dispatcher.policies.orders.queues import Call
from dispatcher.shard.choose import due_queue
from dispatcher.shard.decision import Decision
from dispatcher.shard.records import Worker


def dispatch_next(decision: Decision) -> bool:
    """Give a free slot to the call that is due first. Return False if no waiting call has a free slot for its model."""
    state = decision.state
    for model in state.lanes.of if state.waiting else ():
        worker = state.slots.first(model)
        if worker is not None:
            queue, lowest_vft = due_queue(state, model)
            if queue is not None:
                dispatch(decision, queue.head(), worker, lowest_vft)
                return True
    return False


def dispatch(decision: Decision, call: Call, first: Worker, lowest_vft: float) -> None:
    """Dispatch the call.

    `first`: the least loaded worker of the call's model with a free slot. `lowest_vft`: the lowest of the tenants that
    wait for this model.
    """
    state, tenant = decision.state, call.tenant
    decision.dispatching = call.id
    worker = state.slots.best_for(call, first, state.processes[call.process].unreached) if call.lost_on else first
    slack = state.order.slack
    as_surplus = call.deferred and slack is not None and slack.is_calm(call, state.at)
    in_profile, rate_per_s, clocks, virtual_time = state.order.charged(
        tenant, call.cost, state.at, state.virtual_time, state.scale(), lowest_vft, as_surplus
    )
    decision.add(
        made(
            Dispatched,
            (call.id, worker.name, call.attempt + 1, in_profile, rate_per_s, tenant.weight, clocks, virtual_time),
        )
    )
    decision.dispatching = ""
