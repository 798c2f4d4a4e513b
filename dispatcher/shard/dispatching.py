"""Gives a free slot to the call that is due first. The slot is found first (slots.py), then the queue of its model.

Without tiers that queue is the order's first queue. With tiers it is the first of these that exists:

1. the order's first queue of the tier that is furthest behind its floor, if it is behind by more than the slack
   (tier_floors.py);
2. the first queue in profile of the most urgent tier that has one;
3. the order's first queue of the most urgent tier;
4. the first deferred queue of the most urgent tier. Deferred calls are for capacity that others leave.
"""

from __future__ import annotations

from itertools import chain
from math import inf

from dispatcher.model.call import made
from dispatcher.model.facts import Dispatched
from dispatcher.policies.orders.interface import Index
from dispatcher.policies.orders.queues import Call, TenantQueue
from dispatcher.policies.tiers import Tier
from dispatcher.shard.decision import Decision
from dispatcher.shard.state.records import Worker
from dispatcher.shard.state.state import State
from dispatcher.shard.state.tier_floors import owed_first


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


def due_queue(state: State, model: str) -> tuple[TenantQueue | None, float]:
    """Return the model's queue that is due first, or None, and the lowest vft of all tenants that wait for the
    model."""
    lanes = state.lanes.of.get(model)
    if not lanes:
        return None, inf
    if state.settings.tiers is not None:
        return _first_by_tier(state, lanes), state.lanes.lowest_vft(model)
    return lanes[""].due(state.at, state.virtual_time)


def _first_by_tier(state: State, lanes: dict[str, Index]) -> TenantQueue | None:
    tiers = state.settings.tiers
    for tier in owed_first(state.behind, tiers.slack) if tiers else ():
        if tier in lanes and (queue := lanes[tier].direct(state.at, state.virtual_time)) is not None:
            return queue
    urgent_first = sorted(lanes, key=lambda tier: Tier(tier).rank)
    for tier in urgent_first:
        if (queue := lanes[tier].first_in_profile(state.at)) is not None:
            return queue
    direct = (lanes[tier].direct(state.at, state.virtual_time) for tier in urgent_first)
    others = (lanes[tier].due(state.at, state.virtual_time)[0] for tier in urgent_first)
    return next((queue for queue in chain(direct, others) if queue is not None), None)


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
    in_profile, rate_per_s, clocks, virtual_time = state.order.charge(
        tenant, call.cost, state.at, state.virtual_time, state.scale(), lowest_vft, as_surplus
    )
    decision.add(
        made(
            Dispatched,
            (
                call.id,
                worker.name,
                call.attempt + 1,
                in_profile,
                rate_per_s,
                tenant.config.weight,
                clocks,
                virtual_time,
            ),
        )
    )
    decision.dispatching = ""
