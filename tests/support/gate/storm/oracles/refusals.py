"""Oracles of refusals: each is justified by the state at that time, and no call is accepted beyond its limit (I7)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dispatcher.model.facts import Accepted, Entry, Fact
from dispatcher.shard.state import remembered

if TYPE_CHECKING:
    from dispatcher.shard.state.state import State
    from tests.support.gate.storm.books import Answered
    from tests.support.gate.storm.world import World

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
        """Note an entry that was folded: what waits before or after it, and those that it accepted."""
        arrived: defaultdict[str, int] = defaultdict(int)
        for fact in entry.facts:
            if isinstance(fact, Accepted):
                arrived[fact.terms.tenant] += 1
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
