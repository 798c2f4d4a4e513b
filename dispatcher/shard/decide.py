"""Decides commands. Every fact is applied to the state at once, so that the next decision sees it.

First come the commands that free capacity or change the fleet, then the arrivals. Then workers are ordered to load
models that are missing, and every free slot is given to the call that is due first. This module changes the state only
through facts.
"""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.model.call import made
from dispatcher.model.commands import (
    Accept,
    Cancel,
    Command,
    Done,
    End,
    Gone,
    Leave,
    Offer,
    Outcome,
    Over,
    Plan,
    Present,
    Refused,
    Report,
    Retire,
    Return,
    Saved,
    Silent,
    Status,
    Tick,
    Unknown,
    UseFormat,
    Waiting,
)
from dispatcher.model.facts import Cancelling, Dropped, OrderSet, ProcessLost, ProcessSet, UsageSaved
from dispatcher.model.formats import NEWEST, OLDEST
from dispatcher.shard.accept import accept
from dispatcher.shard.attempts import dispatch, dispatch_next, end, leave, lost_worker, return_attempt
from dispatcher.shard.fold import Decision
from dispatcher.shard.state.records import NO_PROCESS
from dispatcher.shard.state.state import State
from dispatcher.shard.swapping import answered_with_loads, keep_plan, order_loads
from dispatcher.shard.waits.estimate import expected_wait
from dispatcher.shard.workers import report, rested, retire, silent_worker

_ARRIVALS_LAST = frozenset({Accept, Status})
_DONE = Done()


def decide(decision: Decision, commands: Sequence[Command]) -> list[Outcome]:
    """Decide the commands at `state.at`, and return an outcome for each."""
    outcomes: list[Outcome] = [_DONE] * len(commands)
    arrivals: list[int] = []
    for number, command in enumerate(commands):
        if type(command) in _ARRIVALS_LAST:
            arrivals.append(number)
        else:
            outcomes[number] = _decide(decision, command)
    for number in arrivals:
        outcomes[number] = _decide(decision, commands[number])
    order_loads(decision, commands)
    if decision.state.order.is_conserving:
        _give_slots(decision)
        _decide_again(decision, commands, outcomes)
    for number in arrivals:  # after the slots were given away
        if type(outcome := outcomes[number]) is Waiting:
            outcomes[number] = status(decision.state, outcome.id)
    answered_with_loads(decision.state, commands, outcomes)
    return outcomes


def _give_slots(decision: Decision) -> None:
    while dispatch_next(decision):
        pass


def _decide_again(decision: Decision, commands: Sequence[Command], outcomes: list[Outcome]) -> None:
    """Decide the arrivals again that were refused because of a full queue, if a slot is still free.

    The calls that filled the queue may have come in the same entry, and have slots now.
    """
    slots = decision.state.slots
    again = [
        number
        for number, (command, outcome) in enumerate(zip(commands, outcomes, strict=True))
        if isinstance(command, Accept) and _is_full(outcome) and slots.first(command.terms.model) is not None
    ]
    for number in again:
        outcomes[number] = _decide(decision, commands[number])
        _give_slots(decision)


def _is_full(outcome: Outcome) -> bool:
    return isinstance(outcome, Refused) and outcome.code == "queue_full"


def _decide(decision: Decision, command: Command) -> Outcome:
    match command:
        case Accept():
            return _accept(decision, command)
        case End():
            return end(decision, command)
        case Return():
            return return_attempt(decision, command)
        case Report():
            return report(decision, command)
        case Cancel():
            return _cancel(decision, command)
        case Status():
            return status(decision.state, command.id)
        case Tick():
            _tick(decision)
        case Leave():
            leave(decision, command.worker)
        case Retire():
            retire(decision, command)
        case Silent(name, is_worker):
            silent_worker(decision, name) if is_worker else _set_process(decision, name, silent=True)
        case Present():
            _set_process(decision, command.process, silent=False)
        case Plan():
            keep_plan(decision, command)
        case Saved():
            _note_saved_usage(decision, command)
        case UseFormat(wanted):
            return _use_format(decision, wanted)
        case Gone(name, is_worker):
            lost_worker(decision, name) if is_worker else _lost_process(decision, name)
    return _DONE


def _accept(decision: Decision, command: Accept) -> Outcome:
    if command.process != NO_PROCESS:
        _set_process(decision, command.process, silent=False)
    refused = accept(decision, command)
    if refused is not None:
        return refused
    state = decision.state
    call = state.calls.get(command.id)
    if call is None:
        return status(state, command.id)
    if call.queued and not state.order.is_conserving and state.order.goes_at_once(call.tenant, state.at):
        worker = state.slots.first(call.model)
        if worker is not None:
            dispatch(decision, call, worker, state.lanes.lowest_vft(call.model))
    return Waiting(command.id, 0)


def _cancel(decision: Decision, command: Cancel) -> Outcome:
    call = decision.state.calls.get(command.id)
    if call is None:
        return status(decision.state, command.id)
    if call.worker:
        if not call.cancelling:
            decision.add(Cancelling(call.id))
        return Done()
    decision.add(Dropped(call.id, command.outcome))
    return Over(call.id, 0, command.outcome)


def _set_process(decision: Decision, name: str, *, silent: bool) -> None:
    process = decision.state.processes.get(name)
    if process is not None and process.silent is not silent:
        decision.add(ProcessSet(name, "silent" if silent else "present"))


def _lost_process(decision: Decision, name: str) -> None:
    process = decision.state.processes.get(name)
    if process is not None and process.silent:
        decision.add(ProcessLost(name))


def _note_saved_usage(decision: Decision, command: Saved) -> None:
    """Log which usage is projected, but only if a total changed since the last such fact. So snapshots write nothing to
    an idle log."""
    state = decision.state
    position = min(command.position, state.position)
    if state.usage_saved <= state.usage_changed and state.usage_saved < position:
        decision.add(UsageSaved(position))


def _use_format(decision: Decision, wanted: int) -> Outcome:
    if not OLDEST <= wanted <= NEWEST:
        message = f"This version of headgate writes the formats {OLDEST} to {NEWEST}, not {wanted}."
        return Refused("", "unknown_format", message, 0.0)
    state = decision.state
    if not state.log_order or state.format != wanted:
        decision.add(OrderSet(state.order.name, wanted))
    return _DONE


def _tick(decision: Decision) -> None:
    """Drop waiting calls whose deadline has passed. Let workers serve again after their rest or retirement."""
    state = decision.state
    rested(decision)
    due = state.deadlines.take_due(state.at)
    try:
        for call_id in due:
            decision.add(Dropped(call_id, "expired"))
    except BaseException:
        for call in filter(None, map(state.calls.get, due)):  # no inverse adds those without a fact again
            state.deadlines.add(call)
        raise


def status(state: State, call_id: str) -> Outcome:
    """Return the present state of a call."""
    call = state.calls.get(call_id)
    if call is None:
        return state.ends.get(call_id) or Unknown(call_id)
    if call.worker:
        return made(Offer, (call_id, call.attempt, call.worker, state.workers[call.worker].url, state.position))
    tenant = call.tenant
    position = tenant.waiting + tenant.suspended
    if not state.settings.announces_waits:
        return made(Waiting, (call_id, position, None, None))
    queue = tenant.queues.get((call.model, call.deferred))
    ahead = max(1, queue.count) if queue is not None else 1
    wait = expected_wait(state, tenant, call.model, ahead, deferred=call.deferred)
    return made(Waiting, (call_id, position, wait.p50_s, wait.p90_s))
