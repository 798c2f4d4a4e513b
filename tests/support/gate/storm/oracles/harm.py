"""Oracles of thrown errors (I10): an error in the code ends its caller's request and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dispatcher.model.facts import Dropped

if TYPE_CHECKING:
    from tests.support.gate.storm.world import World


def errors_end_their_own_requests(world: World) -> Iterator[str]:
    """A request that an error of the gate ended is of the tenant at fault. Errors that are thrown by chance harm at
    most as many tenants as there were errors: after each, its tenant is a suspect for a while."""
    thrown = world.errors.thrown.total()
    harmed = dict(_harmed(world))
    if world.errors.by_chance.total():
        if len(set(harmed.values())) > thrown:
            yield f"{thrown} errors were thrown, and harmed the requests {harmed}"
        return
    for request, tenant in harmed.items():
        if not thrown or tenant != world.errors.tenant:
            yield f"{request} of {tenant} ended by an error; at fault is {world.errors.tenant or 'no tenant'}"


def _harmed(world: World) -> Iterator[tuple[str, str]]:
    """Yield (request, tenant) of the requests that ended by an error of the gate."""
    for answered in world.books.answers:
        if answered.code == "internal_error":
            yield f"the request of caller {answered.caller}", answered.tenant
    for call_id, ends in world.log.ends.items():
        end = ends[0]
        if isinstance(end, Dropped) and end.outcome == "failed" and not end.attempt:
            yield call_id, world.log.accepted[call_id][0].terms.tenant


def errors_end_one_task(world: World) -> Iterator[str]:
    """An error in a caller's own task ends this caller."""
    ended = sum(answered.code == "error" for answered in world.books.answers)
    if ended > world.errors.by_chance.total():
        yield f"{ended} callers ended by an error, and {world.errors.by_chance.total()} were thrown"
