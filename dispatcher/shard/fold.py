"""The fold: what each fact changes. It assigns the values that facts carry, and decides nothing.

Raises LogCorrupt for a fact that does not fit the state: the shard stops and names it, because every later decision
would be a guess.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatcher.model.commands import Offer, Over, parse_call_id
from dispatcher.model.errors import LogCorrupt
from dispatcher.model.facts import (
    Accepted,
    Cancelling,
    Dispatched,
    Dropped,
    Ended,
    Fact,
    Held,
    OrderSet,
    ProcessLost,
    ProcessSet,
    Returned,
    TenantSet,
    UsageSaved,
    WorkerLost,
    WorkerSet,
)
from dispatcher.policies.orders.queues import Call
from dispatcher.shard.records import RECENT, Process, Worker
from dispatcher.shard.state import State
from dispatcher.shard.tier_floors import after_dispatch

News = tuple[str, Offer | Over]
"""A process, and what it must know of a call that it holds. An empty process: no process holds the call."""

MASK = (1 << RECENT) - 1
NOT_COUNTED = frozenset({"not_begun", "declined"})
"""Reasons of a return that are no failure of the worker and no attempt of the call."""


def fold(state: State, fact: Fact) -> list[News]:
    """Apply a fact of the entry at `state.position`, and return the news in it. Raises LogCorrupt."""
    try:
        news = FOLDS[type(fact)](state, fact)
        state.flush()
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        reason = f"does not fit the state under the order {state.order.name!r}: {error!r}"
        raise LogCorrupt(f"entry {state.position}: {fact!r} {reason}") from error
    return news or []


def _order_set(state: State, fact: OrderSet) -> None:
    if fact.order != state.order.name:
        raise ValueError(f"the log is written under the order {fact.order!r}: set the same order everywhere")
    state.assign("log_order", fact.order)


def _worker_set(state: State, fact: WorkerSet) -> None:
    worker = state.workers.get(fact.worker)
    if worker is None:
        state.set_worker(fact.worker, Worker(fact))
    else:
        rested = worker.config.state == "resting" and fact.state != "resting"
        state.set_config(worker, fact, 0 if rested else worker.failures)


def _worker_lost(state: State, fact: WorkerLost) -> None:
    if state.workers[fact.worker].running:
        raise ValueError("the lost worker still holds calls")
    state.set_worker(fact.worker, None)


def _process_set(state: State, fact: ProcessSet) -> None:
    process, silent = state.process(fact.process), fact.state == "silent"
    if silent is process.silent:
        return
    state.set_process(process, "silent", silent)
    for call in _by_arrival(process):
        if silent and call.queued:
            state.dequeue(call)
            state.suspend(call)
        elif not silent and not call.worker:
            state.suspend(call, -1)
            state.enqueue(call)


def _process_lost(state: State, fact: ProcessLost) -> list[News]:
    process = state.processes[fact.process]
    news: list[News] = []
    for call in _by_arrival(process):
        if call.durable:
            _hold_by(state, call, "")
        elif call.worker:
            state.set_call(call, "cancelling", True)
            _hold_by(state, call, "")
        else:
            news += _leave(state, call, "cancelled")
    state.set_process(process, "silent", False)
    return news


def _tenant_set(state: State, fact: TenantSet) -> None:
    tenant = state.tenant(fact.tenant)
    state.set_tenant(tenant, (fact.version, fact.weight, fact.rate_per_s, fact.burst, fact.tier, fact.waiting_max))
    state.set_clocks(tenant, fact.clocks)


def _accepted(state: State, fact: Accepted) -> None:
    tenant = state.tenants[fact.tenant]
    state.assign("arrivals", state.arrivals + 1)
    call = Call(fact.id, tenant, fact.model, fact.cost, state.arrivals, fact.priority)
    call.arrived_at, call.deadline_at = state.at, fact.deadline_at
    call.process, call.durable, call.app, call.interaction = fact.process, fact.durable, fact.app, fact.interaction
    _note_sequence(state, fact)
    state.add_call(call)
    state.set_clocks(tenant, fact.clocks)
    state.enqueue(call)
    if fact.interaction:
        state.note_interaction(fact.tenant, fact.interaction)
    if state.throttle is not None:
        state.note_admission(fact.tenant, fact.app)


def _dispatched(state: State, fact: Dispatched) -> list[News]:
    call, worker = state.calls[fact.id], state.workers[fact.worker]
    if not call.queued:
        raise ValueError("the dispatched call does not wait")
    tenant, tiers = call.tenant, state.settings.tiers
    state.dequeue(call)
    charge = (fact.in_profile, fact.rate_per_s, fact.weight, fact.attempt, fact.worker, state.at)
    state.set_running(call, charge)
    state.hold(call, worker)
    state.set_clocks(tenant, fact.clocks)
    if fact.virtual_time != state.virtual_time:
        state.assign("virtual_time", fact.virtual_time)
    if tiers is not None:
        waiting = [tier for tier, count in state.waiting_tiers.items() if count]
        state.assign("behind", after_dispatch(state.behind, waiting, tenant.tier, call.cost, tiers.shares, tiers.slack))
    return [(call.process, Offer(call.id, fact.attempt, fact.worker, worker.config.url, state.position))]


def _returned(state: State, fact: Returned) -> None:
    call = state.calls[fact.id]
    if fact.counted:
        state.set_call(call, "counted", call.counted + 1)
        state.set_call(call, "lost_on", call.worker)
    _release(state, call, fact.attempt, failed=fact.reason not in NOT_COUNTED)
    state.set_clocks(call.tenant, fact.clocks)
    process = state.processes.get(call.process)
    if process is not None and process.silent:
        state.suspend(call)
    else:
        state.enqueue(call)


def _ended(state: State, fact: Ended) -> list[News]:
    call = state.calls[fact.id]
    _release(state, call, fact.attempt, failed=False)
    state.set_clocks(call.tenant, fact.clocks)
    if fact.virtual_time != state.virtual_time:
        state.assign("virtual_time", fact.virtual_time)
    state.serve(call, fact.input_tokens, fact.output_tokens, fact.served)
    state.remove_call(call)
    over = Over(call.id, fact.attempt, fact.outcome, fact.input_tokens, fact.output_tokens)
    state.remember_end(call, over)
    return _news(call, over)


def _dropped(state: State, fact: Dropped) -> list[News]:
    return _leave(state, state.calls[fact.id], fact.outcome)


def _held(state: State, fact: Held) -> None:
    _hold_by(state, state.calls[fact.id], fact.process)


def _cancelling(state: State, fact: Cancelling) -> None:
    state.set_call(state.calls[fact.id], "cancelling", True)


def _usage_saved(state: State, fact: UsageSaved) -> None:
    if fact.position > state.position:
        raise ValueError("usage of later entries cannot be saved already")
    state.assign("usage_saved", max(state.usage_saved, fact.position))


def _by_arrival(process: Process) -> list[Call]:
    return sorted(process.calls.values(), key=lambda call: call.arrival)


def _leave(state: State, call: Call, outcome: str) -> list[News]:
    """Remove a waiting call."""
    if call.queued:
        state.dequeue(call)
    else:
        state.suspend(call, -1)
    state.remove_call(call)
    over = Over(call.id, 0, outcome)
    state.remember_end(call, over)
    return _news(call, over)


def _release(state: State, call: Call, attempt: int, *, failed: bool) -> None:
    """Free the call's slot, and note of its worker whether the attempt failed."""
    if call.attempt != attempt:
        raise ValueError(f"the running attempt is {call.attempt}")
    worker = state.workers[call.worker]
    state.release(call, worker)
    state.set_call(call, "worker", "")
    failures = (worker.failures << 1 | failed) & MASK
    if failures != worker.failures:
        state.set_config(worker, worker.config, failures)


def _hold_by(state: State, call: Call, name: str) -> None:
    """Give a call another holder. A waiting call of a silent process waits unsuspended under its new holder."""
    old = state.processes.get(call.process)
    if old is not None and old.silent and not call.worker and not call.queued:
        state.suspend(call, -1)
        state.enqueue(call)
    state.remove_call(call)
    if call.process and call.process not in call.watchers:
        state.set_call(call, "watchers", (*call.watchers, call.process))
    state.set_call(call, "process", name)
    state.add_call(call)


def _note_sequence(state: State, fact: Accepted) -> None:
    """Remember that the process's call was accepted, and forget those that it repeats no more."""
    name, sequence = parse_call_id(fact.id)
    process = state.process(name)
    floor = max(process.floor, fact.floor)
    state.note_sequence(name, process, sequence)
    if floor != process.floor:
        state.set_process(process, "floor", floor)
    state.set_process(process, "seen_at", state.at)


def _news(call: Call, over: Over) -> list[News]:
    return [(name, over) for name in dict.fromkeys((call.process, *call.watchers)) if name]


FOLDS: dict[type[Any], Callable[[State, Any], list[News] | None]] = {
    OrderSet: _order_set,
    WorkerSet: _worker_set,
    WorkerLost: _worker_lost,
    ProcessSet: _process_set,
    ProcessLost: _process_lost,
    TenantSet: _tenant_set,
    Accepted: _accepted,
    Dispatched: _dispatched,
    Returned: _returned,
    Ended: _ended,
    Dropped: _dropped,
    Held: _held,
    Cancelling: _cancelling,
    UsageSaved: _usage_saved,
}
