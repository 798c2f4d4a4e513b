"""Oracles of facts, before each is folded, and of refusals: the order is fair, queues are bounded (I7), a refusal
is justified by the state at that time.

Fairness: a reference order beside the world says what each fact should be by the definitions of the two clocks. It
knows the state before a fact, and computes the clocks, the charge and V by tests/support/world/reference.py, and the
call that is due first by looking at all that wait. Nothing of the product's order or index is used.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import inf, isclose
from typing import TYPE_CHECKING, Any

from dispatcher.model.facts import Accepted, Dispatched, Ended, Entry, Fact, ModelOrdered, Returned
from dispatcher.policies.clocks import Share, rate_scale
from dispatcher.shard.state import remembered
from tests.support.world.reference import Charge, Clocks, debit, in_profile, lift, settlement

if TYPE_CHECKING:
    from dispatcher.policies.orders.queues import Call, Tenant
    from dispatcher.shard.state.state import State
    from tests.support.world.storm.records import Answered
    from tests.support.world.storm.world import World


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
    if isinstance(fact, ModelOrdered) and fact.calls:
        return _payment(state, fact)
    return None


def _payment(state: State, fact: ModelOrdered) -> str | None:
    """Every tenant with a call that waits for the model pays the same with one of them, and all of them the swap."""
    worker = state.workers[fact.worker]
    payers = [state.calls[name] for name in fact.calls]
    waiting = [each for each in state.calls.values() if each.queued and each.model == fact.model]
    if any(each not in waiting for each in payers):
        return f"a call that does not wait for {fact.model} pays for {fact}"
    if sorted(each.tenant.name for each in payers) != sorted({each.tenant.name for each in waiting}):
        return f"{len(payers)} tenants pay for {fact}, and {len({each.tenant.name for each in waiting})} wait"
    rates = {each.model: each.service_per_s for each in worker.config.models}
    price = worker.swap_s[fact.model] * (rates.get(fact.model) or worker.config.service_per_s)
    return _differs("payment", str(fact.calls), [fact.service * len(payers)], [state.settings.swap_charge * price])


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
    tat, vft = _settled(call, state.settings.service(fact.input_tokens, fact.output_tokens))
    clocks = tat, vft + call.swap_service / call.charge_weight
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


TALKS = 2
"""A tenant's interactions in a run (callers.INTERACTIONS)."""
EARLIER_S = 1.0
"""A front repeats a refusal of its tenant for a moment, and a writer's clock may be wrong."""


def beyond_its_limit(state: State, fact: Fact) -> str | None:
    """Return what is wrong with an Accepted that is about to be folded: its tenant's queue was full."""
    if not isinstance(fact, Accepted):
        return None
    tenant = state.tenants[fact.terms.tenant]
    waiting, limit = tenant.waiting + tenant.suspended, tenant.config.waiting_max
    if waiting and waiting >= limit:
        return f"{fact.id} was accepted beside {waiting} waiting calls of {tenant.name}, limit {limit}"
    return None


class Queues:
    """The most that waited in each entry, by tenant, and when calls were accepted."""

    def __init__(self) -> None:
        self._most: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
        self._waited: defaultdict[str, int] = defaultdict(int)
        """After the last entry, by tenant."""

    def note(self, now: float, state: State, entry: Entry) -> None:
        """Note an entry that was folded: what waits before or after it, and the calls that it accepted, or returned to
        their queues, even if it dispatches them again."""
        arrived: defaultdict[str, int] = defaultdict(int)
        for fact in entry.facts:
            if isinstance(fact, Accepted):
                arrived[fact.terms.tenant] += 1
            elif isinstance(fact, Returned) and fact.id in state.calls:
                arrived[state.calls[fact.id].terms.tenant] += 1
        for tenant in state.tenants.values():
            waits = tenant.waiting + tenant.suspended
            most = max(self._waited[tenant.name], waits) + arrived[tenant.name]
            self._waited[tenant.name] = waits
            noted = self._most[tenant.name]
            if not noted or noted[-1][1] != most:
                noted.append((now, most))

    def most(self, tenant: str, since: float, until: float) -> int:
        """Return the most calls of a tenant that waited at some time between."""
        noted = self._most[tenant]
        first = max(0, bisect_right(noted, (since, 1 << 30)) - 1)
        return max((count for _, count in noted[first : bisect_left(noted, (until, 1 << 30))]), default=0)

    def any_waited(self, since: float, until: float) -> bool:
        return any(self.most(tenant, since, until) for tenant in list(self._most))


def refusals_are_justified(world: World) -> Iterator[str]:
    """A call is refused because of a full queue, a far deadline, throttling or overload only if the state was so."""
    for answered in world.books.answers:
        since, until = answered.began - EARLIER_S, answered.at
        if answered.key:
            since = world.began_at  # its refusal may be a stored one of an earlier submission
        if (reason := _unjustified(world, answered, since, until)) is not None:
            yield f"caller {answered.caller} of {answered.tenant} was refused as {answered.code}: {reason}"


def refused_calls_do_not_run(world: World) -> Iterator[str]:
    """I1: a call that the gate refused is not in the log, whichever copy of its command was refused."""
    for call_id, code in world.books.refusals.items():
        if call_id in world.log.accepted:
            yield f"{call_id} was refused as {code}, and accepted"


def _unjustified(world: World, answered: Answered, since: float, until: float) -> str | None:
    queues = world.queues
    match answered.code:
        case "queue_full":
            most = queues.most(answered.tenant, since, until)
            return None if most >= world.lowest_limit(answered.tenant) else f"at most {most} of its calls waited"
        case "deadline_out_of_reach":
            return None if queues.any_waited(since, until) else "no call waited"
        case "throttled_user" | "throttled_app":
            return _not_throttled(world, answered)
        case "overloaded" | "too_old":
            return "the weather is mild" if world.weather.mild and not world.weather.small else None
        case "too_large":
            return None if world.weather.small else "no command is large"
    return None


def _not_throttled(world: World, answered: Answered) -> str | None:
    """Throttling applies to a tenant's or application's first call of an interaction beyond its limit."""
    limits = world.settings.throttling
    if limits is None:
        return "the gate does not throttle"
    is_user = answered.code == "throttled_user"
    admitted = [
        (facts[0].terms.interaction, world.log.accepted_at[call_id])
        for call_id, facts in world.log.accepted.items()
        if (facts[0].terms.tenant == answered.tenant if is_user else True)
    ]
    is_remembered = remembered.INTERACTIONS_MOST >= TALKS  # not with a small bound (scale.py)
    if (
        answered.interaction
        and is_remembered
        and any(
            facts[0].terms.interaction == answered.interaction
            and facts[0].terms.tenant == answered.tenant
            and world.log.written_in[call_id] < answered.began
            for call_id, facts in world.log.accepted.items()
        )
    ):
        return f"its interaction {answered.interaction!r} had begun"
    least = limits.user if is_user else limits.app
    return None if len(admitted) >= least else f"only {len(admitted)} calls were admitted"
