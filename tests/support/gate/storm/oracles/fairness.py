"""A reference order beside the world: what each fact should say by the definitions of the two clocks (fairness).

It knows the state before a fact, and computes the clocks, the charge and V by tests/support/gate/definitions.py, and
the call that is due first by looking at all that wait. Nothing of the product's order or index is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isclose
from typing import TYPE_CHECKING, Any

from dispatcher.model.facts import Accepted, Dispatched, Ended, Fact, Returned
from dispatcher.policies.clocks import Share, rate_scale
from tests.support.gate.definitions import Charge, Clocks, debit, in_profile, lift, settlement

if TYPE_CHECKING:
    from dispatcher.policies.orders.queues import Call, Tenant
    from dispatcher.shard.state.state import State


def unfair(state: State, fact: Fact, accepted: Mapping[str, float]) -> str | None:
    """Return what is wrong with a fact that is about to be folded; None if it is fair. `accepted`: the number of
    each call in the order of acceptance, by id.

    Only for the default order without tiers and due times, which have other definitions.
    """
    settings = state.settings
    if state.order.name != "bwfq" or settings.tiers is not None or settings.slack is not None:
        return None
    if isinstance(fact, Dispatched):
        return _dispatch(state, fact, accepted)
    if isinstance(fact, Accepted):
        return _differs("arrival", fact.id, fact.clocks, _joined(state, state.tenants[fact.terms.tenant]))
    if isinstance(fact, Ended):
        return _end(state, fact)
    if isinstance(fact, Returned):
        return _differs("return", fact.id, fact.clocks, _settled(state.calls[fact.id], 0.0))
    return None


def _dispatch(state: State, fact: Dispatched, accepted: Mapping[str, float]) -> str | None:
    call = state.calls[fact.id]
    waiting = [each for each in state.calls.values() if each.queued and each.model == call.model]
    due = min(waiting, key=lambda each: (*_key(state, each), accepted.get(each.id, inf)), default=None)
    if due is not call:
        return f"{fact.id} of {call.tenant.name} was dispatched, and {due.id if due else 'no call'} was due"
    tenant, share = call.tenant, _share(call.tenant)
    scale = rate_scale(_promised_per_s(state), _capacity_per_s(state))
    clocks = Clocks(*tenant.clocks)
    move = debit(clocks, share, call.cost, state.at, state.virtual_time, rate_scale=scale, was_queued=True)
    lowest = min(each.tenant.clocks[1] for each in waiting)
    virtual_time = max(state.virtual_time, min(move.start_stamp, lowest))
    expected = (move.tat.apply(clocks.tat), move.vft.apply(clocks.vft), virtual_time, float(move.charge.in_profile))
    got = (*fact.clocks, fact.virtual_time, float(fact.in_profile))
    if not isclose(fact.weight, share.weight) or not isclose(fact.rate_per_s, move.charge.rate_per_s):
        return f"{fact.id} was charged for the share {fact.weight}, {fact.rate_per_s}, not for {share} times {scale}"
    return _differs("dispatch", fact.id, got, expected)


def _key(state: State, call: Call) -> tuple[bool, float]:
    """Return the order's key: tenants in profile first, then the lowest vft. Then the oldest call goes first."""
    tenant = call.tenant
    is_surplus = not in_profile(Clocks(*tenant.clocks), _share(tenant), state.at)
    return is_surplus, tenant.clocks[1]


def _joined(state: State, tenant: Tenant) -> tuple[float, float]:
    """Return the clocks after an arrival: lifted to V if no other call waits, the bucket cut to full if none runs."""
    tat, vft = tenant.clocks
    if tenant.waiting or tenant.suspended:
        return tat, vft
    lifted = lift(Clocks(tat, vft), state.virtual_time).apply(vft)
    assert lifted is not None
    if tenant.config.rate_per_s and not tenant.running:
        tat = max(tat, state.at - tenant.config.burst / tenant.config.rate_per_s)
    return tat, lifted


def _end(state: State, fact: Ended) -> str | None:
    call = state.calls[fact.id]
    clocks = _settled(call, state.settings.service(fact.input_tokens, fact.output_tokens))
    worker, virtual_time = state.workers[call.worker], state.virtual_time
    free = [each for each in state.workers.values() if each.model == call.model and each.free > 0]
    if not any(each.queued for each in state.calls.values()) and (free or (worker.slots_open and worker.free >= 0)):
        virtual_time = max(virtual_time, clocks[1])
    return _differs("end", fact.id, (*fact.clocks, fact.virtual_time), (*clocks, virtual_time))


def _settled(call: Call, served: float) -> tuple[float, float]:
    tat, vft = call.tenant.clocks
    charge = Charge(call.cost, call.charge_in_profile, call.charge_rate_per_s, call.charge_weight)
    steps = settlement(charge, served)
    return tat + steps[0].delta, vft + steps[1].delta


def _share(tenant: Tenant) -> Share:
    return Share(tenant.config.weight, tenant.config.rate_per_s, tenant.config.burst)


def _promised_per_s(state: State) -> float:
    """Return the sum of the guaranteed rates of the tenants with calls."""
    active = {call.tenant.name for call in state.calls.values()}
    return sum(state.tenants[name].config.rate_per_s for name in sorted(active))


def _capacity_per_s(state: State) -> float | None:
    """Return the capacity of all workers. One without a measured capacity has the average of the others."""
    measured = [each.config.service_per_s for each in state.workers.values() if each.config.service_per_s]
    return sum(measured) / len(measured) * len(state.workers) if measured else None


def _differs(what: str, call_id: str, got: Any, expected: Any) -> str | None:
    if all(isclose(one, other, rel_tol=1e-9, abs_tol=1e-6) for one, other in zip(got, expected, strict=True)):
        return None
    return f"the {what} of {call_id} has the clocks {got}, the definition says {expected}"
