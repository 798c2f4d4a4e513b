"""Folds the three facts that every call has: it is accepted, dispatched, and ends.

Almost all facts of a log are of these kinds. So one function makes all changes of such a fact, and notes one inverse
with the values from before. The fold of the other facts (fold.py) uses the primitives of state.py. A fact is unpacked
as a whole, because that takes less time than two reads of its fields by name.
"""

from __future__ import annotations

from typing import Any

from dispatcher.model.call import made
from dispatcher.model.commands import Offer, Over, parse_call_id
from dispatcher.model.facts import Accepted, Dispatched, Ended
from dispatcher.model.usage import HOUR_S
from dispatcher.policies.orders.queues import Call, Clocks
from dispatcher.policies.tiers import after_dispatch
from dispatcher.shard.state.records import NO_USAGE, RECENT, Process, Usage, Worker, next_causes
from dispatcher.shard.state.state import State

News = tuple[str, Offer | Over]
"""A process, and the offer or the end of a call that it holds. The name is empty if no process holds the call."""

MASK = (1 << RECENT) - 1


def fold_accept(state: State, fact: Accepted) -> None:
    call_id, floor, holder_name, terms, priority, clocks = fact
    tenant = state.tenants[terms.tenant]
    state.arrivals += 1
    call = Call(call_id, tenant, terms, state.arrivals, priority)
    call.arrived_at, call.process = state.at, holder_name
    name, sequence = parse_call_id(call_id)
    process = state.process(name)
    holder = process if holder_name == name else state.process(holder_name)
    if state.undo is not None:
        before = (process.floor, process.seen_at)
        state.undo.append((_undo_accept, (state, call, holder, process, sequence, before, tenant.clocks)))
    _note_sequence(state, name, process, sequence, floor)
    state.calls[call_id] = call
    holder.calls[call_id] = call
    if clocks != tenant.clocks:
        tenant.clocks = clocks
    if holder.silent:
        state.suspend(call)
    else:
        state.join_queue(call)
    if state.throttle is not None:
        if terms.interaction:
            state.note_interaction(tenant.name, terms.interaction)
        state.note_admission(tenant.name, terms.app)
    state.refresh(tenant)


def _undo_accept(
    state: State,
    call: Call,
    holder: Process,
    process: Process,
    sequence: int,
    before: tuple[int, float],
    clocks: Clocks,
) -> None:
    state.arrivals -= 1
    process.accepted.discard(sequence)
    process.floor, process.seen_at = before
    del state.calls[call.id]
    del holder.calls[call.id]
    call.tenant.clocks = clocks
    if call.queued:
        state.leave_queue(call)
    state.touch(call.tenant)


def _note_sequence(state: State, name: str, process: Process, sequence: int, floor: int) -> None:
    """Remember the number of an accepted call of the process. forgetting.py drops the numbers below the floor."""
    process.accepted.add(sequence)
    if len(process.accepted) > process.accepted_most:
        state.grown.add(name)
    if floor > process.floor:
        process.floor = floor
    process.seen_at = state.at


def fold_dispatch(state: State, fact: Dispatched) -> list[News]:
    call_id, worker_name, attempt, in_profile, rate_per_s, weight, clocks, virtual_time = fact
    call, worker = state.calls[call_id], state.workers[worker_name]
    if not call.queued:
        raise ValueError("the dispatched call does not wait")
    tenant, tiers = call.tenant, state.settings.tiers
    if state.undo is not None:
        before = (
            call.charge_in_profile, call.charge_rate_per_s, call.charge_weight, call.attempt, call.worker,
            call.dispatched_at, tenant.clocks, state.virtual_time, state.behind,
        )  # fmt: skip
        state.undo.append((_undo_dispatch, (state, call, worker, before)))
    state.leave_queue(call)
    call.charge_in_profile, call.charge_rate_per_s, call.charge_weight = in_profile, rate_per_s, weight
    call.attempt, call.worker, call.dispatched_at = attempt, worker_name, state.at
    _take_slot(state, call, worker)
    if call.terms.prefix:
        state.note_holder(call.terms.prefix, worker.name)
    if clocks != tenant.clocks:
        tenant.clocks = clocks
    state.virtual_time = virtual_time
    if tiers is not None:
        waiting = [tier for tier, count in state.waiting_tiers.items() if count]
        state.behind = after_dispatch(state.behind, waiting, tenant.config.tier, call.cost, tiers.shares, tiers.slack)
    state.refresh(tenant)
    return [(call.process, made(Offer, (call_id, attempt, worker_name, worker.url, state.position)))]


def _undo_dispatch(state: State, call: Call, worker: Worker, before: tuple[Any, ...]) -> None:
    _free_slot(state, call, worker)
    (
        call.charge_in_profile, call.charge_rate_per_s, call.charge_weight, call.attempt, call.worker,
        call.dispatched_at, call.tenant.clocks, state.virtual_time, state.behind,
    ) = before  # fmt: skip
    state.join_queue(call)
    state.touch(call.tenant)


def fold_end(state: State, fact: Ended) -> list[News]:
    call_id, attempt, outcome, input_tokens, output_tokens, served, clocks, virtual_time, _, cached_tokens = fact
    call = state.calls[call_id]
    if call.attempt != attempt:
        raise ValueError(f"the running attempt is {call.attempt}")
    worker, tenant = state.workers[call.worker], call.tenant
    key = (tenant.name, call.terms.app, int(state.at // HOUR_S))
    usage = state.usage.get(key, NO_USAGE)
    if state.undo is not None:
        before = (call.worker, tenant.clocks, tenant.spent, state.virtual_time)
        state.undo.append((_undo_end, (state, call, worker, key, usage, before)))
    _free_slot(state, call, worker)
    call.worker = ""
    if worker.failures:
        state.set_failures(worker, worker.failures << 1 & MASK, next_causes(worker.causes, ""))
    if clocks != tenant.clocks:
        tenant.clocks = clocks
    state.virtual_time = virtual_time
    tenant.spent += served
    totals = usage.plus(input_tokens, output_tokens, served, state.position, cached_tokens)
    if usage.requests:
        state.usage.replace(key, totals)
    else:
        state.usage[key] = totals
        state.apps[tenant.name, key[2]] += 1
    state.usage_changed = state.position
    del state.calls[call_id]
    process = state.processes[call.process]
    del process.calls[call_id]
    if process.unreached and outcome == "done":
        state.set_process(process, "unreached", ())
    over = made(Over, (call_id, attempt, outcome, input_tokens, output_tokens))
    state.ends[call_id] = over
    if call.terms.durable:
        state.durable_ends.append((over, attempt))
    service = state.settings.service
    outputs = service(input_tokens, output_tokens) - service(input_tokens, 0)
    state.waits.ended.append((call, served, outputs))
    state.refresh(tenant)
    return news_of(call, over)


def _undo_end(
    state: State, call: Call, worker: Worker, key: tuple[str, str, int], usage: Usage, before: tuple[Any, ...]
) -> None:
    del state.ends[call.id]
    state.calls[call.id] = call
    state.processes[call.process].calls[call.id] = call
    call.worker, call.tenant.clocks, call.tenant.spent, state.virtual_time = before
    if usage.requests:
        state.usage[key] = usage
    else:
        del state.usage[key]
        state.apps[key[0], key[2]] -= 1
    _take_slot(state, call, worker)
    state.touch(call.tenant)


def news_of(call: Call, over: Over) -> list[News]:
    """Return the end of the call for each process that holds it or held it before."""
    if call.watchers:
        return [(name, over) for name in dict.fromkeys((call.process, *call.watchers)) if name]
    return [(call.process, over)] if call.process else []


def _take_slot(state: State, call: Call, worker: Worker) -> None:
    worker.running[call.id] = call
    state.running_ages.note(call, 1)
    call.tenant.running += 1
    state.slots.update(worker)


def _free_slot(state: State, call: Call, worker: Worker) -> None:
    del worker.running[call.id]
    state.running_ages.note(call, -1)
    call.tenant.running -= 1
    state.slots.update(worker)
