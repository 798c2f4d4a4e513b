"""The fold applies facts to the state. It assigns the values that a fact contains, and decides nothing.

steps.py folds the three facts that every call has, this file folds the rare ones. A `Decision` collects the facts of
one entry while they are decided, and has each folded at once.

The fold raises LogCorrupt, which names the fact, if a fact does not fit the state. The fact may then be applied in
part, so this state must not be used again: a replica loads its snapshot (service/gate/replica.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatcher.model.commands import Over
from dispatcher.model.errors import LogCorrupt
from dispatcher.model.facts import (
    Accepted,
    Cancelling,
    Dispatched,
    Dropped,
    Ended,
    Fact,
    Held,
    ModelOrdered,
    OrderSet,
    Planned,
    ProcessLost,
    ProcessSet,
    Returned,
    TenantSet,
    UsageSaved,
    WorkerLost,
    WorkerSet,
)
from dispatcher.model.formats import NEWEST
from dispatcher.policies.orders.queues import Call
from dispatcher.policies.planning.fleet import paid_until
from dispatcher.shard.state.records import UNREACHED_KEPT, Process, Worker, cause_of, next_causes
from dispatcher.shard.state.state import State
from dispatcher.shard.steps import MASK, News, fold_accept, fold_dispatch, fold_end, news_of

NOT_COUNTED = frozenset({"not_begun", "declined"})
"""A return for one of these reasons counts neither as a failure of the worker nor as an attempt of the call."""
NO_ROUTE = "no_route"
"""The shard logs "no_route" for a return as "unreachable" if the process has not reached another worker before either.
This probably shows a fault of the process, so it does not count as a failure of the worker. Otherwise a single front
without a route to the workers would make all of them rest, for all tenants."""
_REACHED = frozenset({"refused", "failed"})
"""A return for one of these reasons shows that the order of the call's process reached the worker."""


def fold(state: State, fact: Fact) -> list[News]:
    """Apply a fact of the entry at `state.position`. Return the news for processes that hold calls. Raises
    LogCorrupt."""
    try:
        news = FOLDS[type(fact)](state, fact)
        state.flush()
    except Exception as error:
        reason = f"does not fit the state under the order {state.order.name!r}: {error!r}"
        raise LogCorrupt(f"entry {state.position}: {fact!r} {reason}") from error
    return news or []


def _fold_order_set(state: State, fact: OrderSet) -> None:
    if fact.order != state.order.name:
        raise ValueError(f"the log is written under the order {fact.order!r}: set the same order everywhere")
    state.assign("log_order", fact.order)
    state.assign("format", fact.format)


def _fold_worker_set(state: State, fact: WorkerSet) -> None:
    worker = state.workers.get(fact.worker)
    if worker is None:
        state.set_worker(fact.worker, Worker(fact))
    else:
        if worker.load and worker.load == fact.model:
            took_s = fact.loaded_at - worker.ordered_at
            state.set_paid(worker, paid_until(worker.paid_until, worker.ordered_at, took_s))
        if worker.load in (fact.model, *_unloadable(worker, fact)):
            state.set_load(worker, "", worker.ordered_at)
        rested = worker.config.state == "resting" and fact.state != "resting"
        state.set_config(worker, fact)
        if rested and worker.failures:
            state.set_failures(worker, 0, ())


def _unloadable(worker: Worker, fact: WorkerSet) -> tuple[str, ...]:
    """Return the model that the worker was ordered to load, if it can no longer load it."""
    return () if any(each.model == worker.load for each in fact.models) else (worker.load,)


def _fold_model_order(state: State, fact: ModelOrdered) -> None:
    worker = state.workers[fact.worker]
    if fact.model and fact.model not in worker.swap_s:
        raise ValueError("the worker cannot load this model")
    state.set_load(worker, fact.model, state.at)
    if fact.model:
        state.assign("models_turned", {**state.models_turned, worker.model: state.at, fact.model: state.at})
    for call in [state.calls[name] for name in fact.calls if name in state.calls]:
        state.set_call(call, "swap_service", call.swap_service + fact.service)


def _fold_plan(state: State, fact: Planned) -> None:
    state.assign("plan", fact)


def _fold_worker_loss(state: State, fact: WorkerLost) -> None:
    if state.workers[fact.worker].running:
        raise ValueError("the lost worker still holds calls")
    state.set_worker(fact.worker, None)


def _fold_process_set(state: State, fact: ProcessSet) -> None:
    process, silent = state.process(fact.process), fact.state == "silent"
    if silent is process.silent:
        return
    state.set_process(process, "silent", silent)
    for call in _by_arrival(process):
        _move(state, call, silent=silent)


def _fold_process_loss(state: State, fact: ProcessLost) -> list[News]:
    process = state.processes[fact.process]
    news: list[News] = []
    for call in _by_arrival(process):
        if call.terms.durable:
            _hold_by(state, call, "")
        elif call.worker:
            state.set_call(call, "cancelling", True)
            _hold_by(state, call, "")
        else:
            news += _leave(state, call, Over(call.id, 0, "cancelled"))
    state.set_process(process, "silent", False)
    return news


def _fold_tenant_set(state: State, fact: TenantSet) -> None:
    tenant = state.tenant(fact.tenant)
    state.set_tenant(tenant, fact.config)
    state.set_clocks(tenant, fact.clocks)


def _fold_return(state: State, fact: Returned) -> None:
    call = state.calls[fact.id]
    if fact.counted:
        state.set_call(call, "counted", call.counted + 1)
        state.set_call(call, "lost_on", call.worker)
    process = state.processes[call.process]
    _note_reached(state, process, call.worker, fact.reason)
    _release(state, call, fact.attempt, fact.reason)
    state.set_clocks(call.tenant, fact.clocks)
    if process.silent:
        state.suspend(call)
    else:
        state.enqueue(call)


def _fold_drop(state: State, fact: Dropped) -> list[News]:
    call = state.calls[fact.id]
    if fact.attempt:
        state.add_usage(call, fact.input_tokens, fact.output_tokens, fact.served, fact.cached_tokens)
    return _leave(state, call, Over(call.id, fact.attempt, fact.outcome, fact.input_tokens, fact.output_tokens))


def _fold_hold(state: State, fact: Held) -> None:
    _hold_by(state, state.calls[fact.id], fact.process)


def _fold_cancelling(state: State, fact: Cancelling) -> None:
    state.set_call(state.calls[fact.id], "cancelling", True)


def _fold_saved_usage(state: State, fact: UsageSaved) -> None:
    if fact.position > state.position:
        raise ValueError("usage of later entries cannot be saved already")
    state.assign("usage_saved", max(state.usage_saved, fact.position))


def _move(state: State, call: Call, *, silent: bool) -> None:
    """Suspend the call if it is in a queue and its holder is silent. Put it into its queue if it is suspended and its
    holder is present."""
    if silent and call.queued:
        state.dequeue(call)
        state.suspend(call)
    elif not silent and not call.queued and not call.worker:
        state.suspend(call, -1)
        state.enqueue(call)


def _by_arrival(process: Process) -> list[Call]:
    return sorted(process.calls.values(), key=lambda call: call.arrival)


def _leave(state: State, call: Call, over: Over) -> list[News]:
    """Remove a waiting call."""
    if call.queued:
        state.dequeue(call)
    else:
        state.suspend(call, -1)
    state.remove_call(call)
    state.remember_end(call, over)
    return news_of(call, over)


def _note_reached(state: State, process: Process, worker: str, reason: str) -> None:
    """Remember that the process could not reach the worker, or forget such workers after it reached one."""
    if reason in ("unreachable", NO_ROUTE):
        others = tuple(name for name in process.unreached if name != worker)
        state.set_process(process, "unreached", (*others, worker)[-UNREACHED_KEPT:])
    elif reason in _REACHED and process.unreached:
        state.set_process(process, "unreached", ())


def _release(state: State, call: Call, attempt: int, reason: str) -> None:
    """Free the slot of a returned call, and record for its worker whether the attempt failed."""
    if call.attempt != attempt:
        raise ValueError(f"the running attempt is {call.attempt}")
    worker = state.workers[call.worker]
    state.release(call, worker)
    state.set_call(call, "worker", "")
    if reason == NO_ROUTE:
        return
    failures = (worker.failures << 1 | (reason not in NOT_COUNTED)) & MASK
    causes = next_causes(worker.causes, "" if reason in NOT_COUNTED else cause_of(call, reason))
    if failures != worker.failures or causes != worker.causes:
        state.set_failures(worker, failures, causes)


def _hold_by(state: State, call: Call, name: str) -> None:
    """Give a call another holder. A waiting call is suspended from here on if the new holder is silent."""
    state.remove_call(call)
    if call.process and call.process not in call.watchers:
        state.set_call(call, "watchers", (*call.watchers, call.process))
    state.set_call(call, "process", name)
    state.add_call(call)
    _move(state, call, silent=state.processes[name].silent)


FOLDS: dict[type[Any], Callable[[State, Any], list[News] | None]] = {
    OrderSet: _fold_order_set,
    WorkerSet: _fold_worker_set,
    ModelOrdered: _fold_model_order,
    Planned: _fold_plan,
    WorkerLost: _fold_worker_loss,
    ProcessSet: _fold_process_set,
    ProcessLost: _fold_process_loss,
    TenantSet: _fold_tenant_set,
    Accepted: fold_accept,
    Dispatched: fold_dispatch,
    Returned: _fold_return,
    Ended: fold_end,
    Dropped: _fold_drop,
    Held: _fold_hold,
    Cancelling: _fold_cancelling,
    UsageSaved: _fold_saved_usage,
}


class Decision:
    """The facts of one entry while they are decided. Each is applied to the state at once."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.facts: list[Fact] = []
        self.news: list[News] = []
        self.dispatching = ""
        """The id of the waiting call that is being dispatched. If that raises, the call is at fault, not a command."""
        self.is_folding = False
        """Whether a fact is being applied. If that raises, the fact has no inverse, and the state is of no use."""

    def add(self, fact: Fact) -> None:
        state = self.state
        facts: tuple[Fact, ...] = (fact,)
        if not state.log_order:  # nothing older has ever read this log
            facts = (OrderSet(state.order.name, NEWEST), fact)
        for each in facts:
            self.facts.append(each)
            self.is_folding = True
            self.news += fold(state, each)
            self.is_folding = False
