"""Chooses the queue that gets a free slot (slots.py chooses the slot).

Without tiers it is the order's first queue. With tiers, the first of these that exists:

1. the order's first queue of the tier that is furthest behind its floor, if it is behind by more than the slack
   (tier_floors.py);
2. the first queue in profile of the most urgent tier that has one;
3. the order's first queue of the most urgent tier;
4. the first deferred queue of the most urgent tier. Deferred calls are for capacity that others leave.
"""

from __future__ import annotations

from itertools import chain
from math import inf

from dispatcher.policies.orders.interface import Index
from dispatcher.policies.orders.queues import TenantQueue
from dispatcher.policies.tiers import Tier
from dispatcher.shard.state import State
from dispatcher.shard.tier_floors import owed_first


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
        if (queue := lanes[tier].guaranteed(state.at)) is not None:
            return queue
    direct = (lanes[tier].direct(state.at, state.virtual_time) for tier in urgent_first)
    others = (lanes[tier].due(state.at, state.virtual_time)[0] for tier in urgent_first)
    return next((queue for queue in chain(direct, others) if queue is not None), None)
