"""Oracles that look at the world after each entry of the log, at the moment when it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dispatcher.model.facts import (
    Accepted,
    Dispatched,
    Dropped,
    Ended,
    Entry,
    ModelOrdered,
    ProcessSet,
    Returned,
    WorkerLost,
    WorkerSet,
)
from dispatcher.model.shards import process_in
from dispatcher.model.worker_protocol import execution_name

if TYPE_CHECKING:
    from tests.support.world.storm.world import World


EntryOracle = Callable[["World", Entry], str | None]
"""Returns what is wrong, or None."""

LOST_BEFORE_S = 15.0
"""After a lost shard is back, its log holds no more attempts of before within this time."""
PAUSED_BEFORE_S = 4.0
"""A worker that was paused aborts what it lost within this time after it goes on."""


def accepted_once(world: World, entry: Entry) -> str | None:
    """I1: a call is accepted at most once, however often its command arrives (rule 8)."""
    for fact in entry.facts:
        if isinstance(fact, Accepted) and len(world.log.accepted[fact.id]) > 1:
            return f"{fact.id} was accepted again in entry {entry.position}"
    return None


def ends_once(world: World, entry: Entry) -> str | None:
    """I1, I2: a call ends at most once, and is charged at most once."""
    for fact in entry.facts:
        if isinstance(fact, Ended | Dropped) and len(world.log.ends[fact.id]) > 1:
            return f"{fact.id} ended again in entry {entry.position}"
    return None


def slots_in_the_log(world: World, entry: Entry) -> str | None:
    """I3: the log gives a worker at most as many attempts as it has slots, and only while it serves."""
    workers = world.log.reference.state.workers
    for fact in entry.facts:
        if isinstance(fact, Dispatched):
            worker = workers.get(fact.worker)
            if worker is not None and len(worker.running) > worker.config.slots:
                return f"{fact.worker} holds {len(worker.running)} attempts in entry {entry.position}"
    return None


def slots_over_all_shards(world: World, entry: Entry) -> str | None:
    """I3: in mild weather the logs of all shards together give a worker at most as many attempts as it has slots.

    Not while a shard is lost and for a while after it, or after the worker's process died: then a slot goes to another
    shard while the log of the first one still holds it. The worker itself never runs more (`physical_slots`).
    """
    if len(world.logs) == 1 or not world.weather.mild:
        return None
    was_lost = any(world.now() < ended + LOST_BEFORE_S for own in world.losses for _, ended in own)
    for fact in entry.facts if not was_lost else ():
        if not isinstance(fact, Dispatched) or fact.worker in world.touched:
            continue
        if (held := world.held_on(fact.worker)) > world.weather.slots:
            return f"{fact.worker} holds {held} attempts of all shards in entry {entry.position}"
    return None


def no_slot_is_left_free(world: World, entry: Entry) -> str | None:
    """I8: after each decision no call waits that could have a free slot (the order conserves work)."""
    state = world.log.reference.state
    free = {
        worker.config.model
        for worker in state.workers.values()
        if worker.config.state == "serving" and not worker.load and len(worker.running) < worker.config.slots
    }
    for call in state.calls.values() if entry.facts and state.order.is_conserving else ():
        if call.queued and call.model in free:
            return f"after entry {entry.position} {call.id} waits and a slot is free"
    return None


def ordered_workers_get_no_calls(world: World, entry: Entry) -> str | None:
    """A worker that should load another model gets no call until it reports the model or the order is withdrawn."""
    ordered = world.log.ordered
    for fact in entry.facts:
        if isinstance(fact, ModelOrdered):
            ordered[fact.worker] = fact.model
        elif isinstance(fact, WorkerSet | WorkerLost) and (
            isinstance(fact, WorkerLost) or fact.model == ordered.get(fact.worker)
        ):
            ordered.pop(fact.worker, None)
        elif isinstance(fact, Dispatched) and ordered.get(fact.worker):
            return f"{fact.id} was dispatched to {fact.worker}, which loads {ordered[fact.worker]}"
    return None


def calls_go_to_their_model(world: World, entry: Entry) -> str | None:
    """The log gives a call only to a worker that has its model."""
    models = world.log.models
    for fact in entry.facts:
        if isinstance(fact, WorkerSet):
            models[fact.worker] = fact.model
        elif isinstance(fact, Dispatched) and models[fact.worker] != world.log.accepted[fact.id][0].terms.model:
            return f"{fact.id} was dispatched to {fact.worker}, which has the model {models[fact.worker]}"
    return None


def live_work_is_not_given_away(world: World, entry: Entry) -> str | None:
    """I3: when the log ends or returns an attempt, the attempt does not run in an engine (rules 4 and 5).

    A worker that is or was just paused, or is dead, cannot know that its lease is over.
    """
    for fact in entry.facts:
        if not isinstance(fact, Ended | Returned):
            continue
        execution = world.books.executions.get(execution_name(fact.id, fact.attempt))
        if execution is None or execution.ended:
            continue
        node = next((worker for worker in world.workers if worker.name == execution.worker), None)
        if node is None or not node.is_up or node.incarnation != execution.incarnation:
            continue
        if node.host.paused or world.now() - world.resumed_at.get(node.name, 0.0) < PAUSED_BEFORE_S:
            continue
        return f"{execution.name} runs on {node.tag}, and entry {entry.position} has {type(fact).__name__}"
    return None


def sums(world: World, _entry: Entry) -> str | None:
    """I4: counts of waiting and running calls and the sums of service are those of the calls; none is negative."""
    state = world.log.reference.state
    waiting = sum(1 for call in state.calls.values() if call.queued)
    suspended = sum(1 for call in state.calls.values() if not call.worker and not call.queued)
    running = sum(len(worker.running) for worker in state.workers.values())
    if (waiting, waiting + suspended + running) != (state.waiting, len(state.calls)):
        return f"{state.waiting} wait and {len(state.calls)} are open, but {waiting}, {suspended}, {running} are kept"
    for tenant in state.tenants.values():
        own = [call for call in state.calls.values() if call.tenant is tenant]
        counts = (
            sum(1 for call in own if call.queued),
            sum(1 for call in own if not call.worker and not call.queued),
            sum(1 for call in own if call.worker),
        )
        if counts != (tenant.waiting, tenant.suspended, tenant.running) or tenant.spent < 0:
            return f"{tenant.name}: {tenant.waiting}, {tenant.suspended}, {tenant.running}, not {counts}"
    return None


def time_goes_on(world: World, entry: Entry) -> str | None:
    """Rule 10: the time of an entry is never before that of the entry before it."""
    if entry.at < world.log.at:
        return f"entry {entry.position} is of {entry.at:.3f}, the one before it of {world.log.at:.3f}"
    return None


def healthy_processes_begin_their_offers(world: World, entry: Entry) -> str | None:
    """I8, rules 13 and 14: in mild weather a front that was never disturbed begins every offer of a plain call in time.

    A durable call changes its holder, and the one that lets it go may have the offer.
    """
    for fact in entry.facts if world.weather.mild else ():
        if isinstance(fact, Returned) and _is_not_begun(world, fact):
            process = world.log.holders.get(fact.id, "")
            worker = world.log.attempts[fact.id, fact.attempt].worker
            front = next((each for each in world.fronts if process_in(each.tag, world.shard) == process), None)
            if front is not None and not {front.name, worker} & world.touched:
                return f"{process} did not begin {execution_name(fact.id, fact.attempt)} on {worker}"
    return None


def no_offers_to_the_dead(world: World, entry: Entry) -> str | None:
    """Rule 6: after an offer was not begun because its process is dead, its calls are offered no more.

    A message that the process sent before its death may arrive late and resume it, once or twice.
    """
    living = world.living()
    for fact in entry.facts:
        if isinstance(fact, Returned) and fact.reason == "not_begun":
            process = world.log.holders.get(fact.id, "")
            if process and process not in living and not process.startswith("g"):
                world.log.wasted[process] += 1
        elif isinstance(fact, Dispatched) and world.log.wasted[world.log.holders.get(fact.id, "")] > WASTED_MAX:
            return f"{fact.id} was offered to the dead {world.log.holders[fact.id]} again"
    return None


def not_begun_suspends(world: World, entry: Entry) -> str | None:
    """Rule 6: the calls of a process that did not begin its offer get no offers until a message of it arrives.

    A durable call may have changed its holder since the offer.
    """
    resumed = {fact.process for fact in entry.facts if isinstance(fact, ProcessSet) and fact.state == "present"}
    not_begun = {
        world.log.holders.get(fact.id, "")
        for fact in entry.facts
        if isinstance(fact, Returned) and _is_not_begun(world, fact)
    }
    for fact in entry.facts:
        process = world.log.holders.get(fact.id, "") if isinstance(fact, Dispatched) else ""
        if process in not_begun - resumed - {""}:
            return f"{process} did not begin an offer and got another one in the same entry {entry.position}"
    return None


def dead_workers_get_no_offers(world: World, entry: Entry) -> str | None:
    """I8: in mild weather no call is offered to a worker that has been dead for longer than it takes to notice.

    Only a gate process notices it (rule 14), so one of them must have lived through everything.
    """
    is_watched = any(gate.is_up and gate.name not in world.touched for gate in world.gates)
    if not world.weather.mild or not is_watched or world.now() < world.disturbed_until:
        return None
    for fact in entry.facts:
        if isinstance(fact, Dispatched):
            dead_s = world.now() - world.down_since.get(fact.worker, world.now())
            if dead_s > NOTICED_S:
                return f"{fact.id} was offered to {fact.worker}, which is dead for {dead_s:.1f} s"
    return None


def not_begun_does_not_count(world: World, entry: Entry) -> str | None:
    """Rule 6: an offer that was not begun is no attempt of its call."""
    for fact in entry.facts:
        if isinstance(fact, Returned) and fact.counted and fact.reason in ("not_begun", "declined"):
            return f"{execution_name(fact.id, fact.attempt)} was {fact.reason} and counts"
    return None


def launched_calls_are_begun(world: World, entry: Entry) -> str | None:
    """I8, rule 14: when nothing fails any more, a dispatched call that no process holds is executed by one."""
    if not world.outage.is_over:
        return None
    for fact in entry.facts:
        if isinstance(fact, Returned) and fact.reason == "not_begun" and not world.log.holders.get(fact.id, ""):
            world.log.not_launched[fact.id] += 1
            if world.log.not_launched[fact.id] > NOT_LAUNCHED_MAX:
                return f"{fact.id} was dispatched {world.log.not_launched[fact.id]} times and begun by no process"
    return None


NOTICED_S = 6.0
"""A broken connection is noticed at once, a silent one after 3 s; both after the leader's calm."""
NOT_LAUNCHED_MAX = 2
"""Most offers to a dead process, or to one after its caller has left: messages that were already sent."""
WASTED_MAX = 2
"""Offers that were under way to a dead process when the first one came back, and a late message."""

ENTRY_ORACLES: list[EntryOracle] = [
    accepted_once,
    ends_once,
    slots_in_the_log,
    slots_over_all_shards,
    no_slot_is_left_free,
    ordered_workers_get_no_calls,
    calls_go_to_their_model,
    live_work_is_not_given_away,
    sums,
    time_goes_on,
    healthy_processes_begin_their_offers,
    no_offers_to_the_dead,
    launched_calls_are_begun,
    not_begun_does_not_count,
    not_begun_suspends,
    dead_workers_get_no_offers,
]


def _is_not_begun(world: World, fact: Returned) -> bool:
    """Return whether the process that held a call without a key did not begin its offer."""
    return fact.reason == "not_begun" and not world.log.accepted[fact.id][0].terms.durable
