"""Begins, ends and returns attempts: a free slot goes to the call that is due first, until a report ends the attempt.

The slot is found first, then the queue of its model. Without tiers that queue is the order's first queue. With tiers it
is the first of these that exists:

1. the order's first queue of the tier that is furthest behind its floor, if it is behind by more than the slack
   (policies/tiers.py);
2. the first queue in profile of the most urgent tier that has one;
3. the order's first queue of the most urgent tier;
4. the first deferred queue of the most urgent tier. Deferred calls are for capacity that others leave.

A report names its attempt's number: the report of an older attempt changes nothing.
"""

from __future__ import annotations

from itertools import chain
from math import inf

from dispatcher.model.call import made
from dispatcher.model.commands import Done, End, Outcome, Return, Unknown
from dispatcher.model.facts import Dispatched, Dropped, Ended, ProcessSet, Returned, WorkerLost
from dispatcher.model.formats import OLDEST
from dispatcher.model.kept import ATTEMPTS_MAX
from dispatcher.policies.orders.interface import Index
from dispatcher.policies.orders.queues import Call, TenantQueue
from dispatcher.policies.share_bounds import COST_MAX, clamp_cost
from dispatcher.policies.tiers import Tier, owed_first
from dispatcher.shard.fold import NO_ROUTE, NOT_COUNTED, Decision
from dispatcher.shard.state.records import Worker
from dispatcher.shard.state.state import State


def dispatch_next(decision: Decision) -> bool:
    """Give a free slot to the call that is due first. Return False if no waiting call has a free slot for its model."""
    state = decision.state
    for model in state.lanes.of if state.waiting else ():
        worker = state.slots.first(model)
        if worker is not None:
            queue, lowest_vft = due_queue(state, model)
            if queue is not None:
                dispatch(decision, queue.head(), worker, lowest_vft)
                return True
    return False


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
        if (queue := lanes[tier].first_in_profile(state.at)) is not None:
            return queue
    direct = (lanes[tier].direct(state.at, state.virtual_time) for tier in urgent_first)
    others = (lanes[tier].due(state.at, state.virtual_time)[0] for tier in urgent_first)
    return next((queue for queue in chain(direct, others) if queue is not None), None)


def dispatch(decision: Decision, call: Call, first: Worker, lowest_vft: float) -> None:
    """Dispatch the call.

    `first`: the least loaded worker of the call's model with a free slot. `lowest_vft`: the lowest of the tenants that
    wait for this model.
    """
    state, tenant = decision.state, call.tenant
    decision.dispatching = call.id
    worker = state.slots.best_for(call, first, state.processes[call.process].unreached) if call.lost_on else first
    if call.terms.prefix and worker is first:
        worker = _holder(state, call, first)
    slack = state.order.slack
    as_surplus = call.deferred and slack is not None and slack.is_calm(call, state.at)
    in_profile, rate_per_s, clocks, virtual_time = state.order.charge(
        tenant, call.cost, state.at, state.virtual_time, state.scale(), lowest_vft, as_surplus
    )
    decision.add(
        made(
            Dispatched,
            (
                call.id,
                worker.name,
                call.attempt + 1,
                in_profile,
                rate_per_s,
                tenant.config.weight,
                clocks,
                virtual_time,
            ),
        )
    )
    decision.dispatching = ""


def _holder(state: State, call: Call, first: Worker) -> Worker:
    """Return the worker that had the longest beginning of the call's prompt last, if it has a free slot and is hardly
    fuller than `first` (`prefix_lead`); otherwise `first`.

    Only the place of the call changes: it would have been dispatched now in any case. So no other call waits longer,
    and no slot stays free.
    """
    avoided = (call.lost_on, *state.processes[call.process].unreached)
    for name in state.holders.of(call.terms.prefix):
        worker = state.slots.near(name, first, state.settings.prefix_lead)
        if worker is not None and name not in avoided:
            return worker
    return first


_EARLY_S = 4.0
"""A cancelled call that is returned less than this before its deadline ends as expired. The front may have cancelled it
because of the deadline: its clock and the writer's may each be 2 s off (rule 10)."""
_FIRST_TOKEN_MAX_S = 1e6
_TOKENS_MAX = 1_000_000_000
"""No engine's request has more input or output tokens, or a later first token. An end that cannot be written would hold
its slot for ever, so its numbers are clamped."""
BY_ITS_PROCESS = frozenset({"unreachable", "declined"})
"""The reasons of returns that the process of a call sends, not its worker."""


def end(decision: Decision, command: End) -> Outcome:
    """End a running call, and charge its true service.

    If several processes held the call, an `unbegun` end is ignored: another one may have begun the attempt.
    """
    state = decision.state
    call = _running(state, command.id, command.attempt)
    if call is None and command.kept:
        return _drop_with_answer(decision, command)
    if call is None:
        return _known_end(state, command.id, command.attempt)
    if command.unbegun and call.watchers and (call.process or not command.kept):
        return Done()
    tokens = (command.input_tokens, command.output_tokens)
    _end(
        decision, call, command.outcome, *tokens, command.first_token_s, command.cached_tokens,
        adapter_loaded=command.adapter_loaded,
    )  # fmt: skip
    return state.ends[command.id]


def _drop_with_answer(decision: Decision, command: End) -> Outcome:
    """End a waiting call with the answer of a returned attempt."""
    state = decision.state
    call = state.calls.get(command.id)
    if call is not None and not call.worker:
        tokens = (command.input_tokens, command.output_tokens)
        cached_tokens = _cached_tokens(state, command.cached_tokens, command.input_tokens)
        served = state.settings.charge(*tokens, cached_tokens, adapter_loaded=command.adapter_loaded)
        decision.add(Dropped(call.id, command.outcome, command.attempt, *tokens, served, cached_tokens))
    return _known_end(state, command.id, command.attempt)


def return_attempt(decision: Decision, command: Return) -> Outcome:
    """Put an attempt's call back into its queue and refund it, or end the call if it may not be tried again.

    If several processes held the call, none of them can promise that the attempt does not begin. Only its worker can.
    """
    state = decision.state
    call = _running(state, command.id, command.attempt)
    if call is None:
        return _known_end(state, command.id, command.attempt)
    if call.watchers and command.reason in BY_ITS_PROCESS:
        return Done()
    if command.reason == "not_begun" and not call.cancelling and not state.processes[call.process].silent:
        decision.add(ProcessSet(call.process, "silent"))  # before its slot is free, or another of its calls gets it
    _return(decision, call, NO_ROUTE if _lacks_route(state, call, command.reason) else command.reason)
    _rest_if_failing(decision, command.worker)
    if not state.order.is_conserving:
        dispatch_next(decision)
    return Done()


def _lacks_route(state: State, call: Call, reason: str) -> bool:
    """Return whether the call's process could not reach this worker, and could not reach another worker before."""
    unreached = state.processes[call.process].unreached
    return reason == "unreachable" and any(name != call.worker for name in unreached)


def leave(decision: Decision, worker_id: str) -> None:
    """Return or end all attempts of a worker that has left, then remove the worker."""
    worker = decision.state.workers.get(worker_id)
    if worker is None:
        return
    decision.add(worker.config._replace(state="draining"))
    for call in sorted(worker.running.values(), key=lambda each: each.arrival):
        _return(decision, call, "lost")
    decision.add(WorkerLost(worker_id))


def lost_worker(decision: Decision, worker_id: str) -> None:
    """Remove a worker if it is silent in the log. The sender of the command has waited for the end of its lease."""
    worker = decision.state.workers.get(worker_id)
    if worker is not None and worker.config.state == "silent":
        leave(decision, worker_id)


def _return(decision: Decision, call: Call, reason: str) -> None:
    state = decision.state
    counted = reason not in NOT_COUNTED
    if state.at >= call.terms.deadline_at - (_EARLY_S if call.cancelling else 0.0):
        return _end(decision, call, "expired")
    if call.cancelling or (not call.process and not call.terms.durable):
        return _end(decision, call, "cancelled")
    if counted and call.counted + 1 >= ATTEMPTS_MAX:
        return _end(decision, call, "failed")
    clocks = state.order.settle(call.tenant, call, 0.0)
    decision.add(Returned(call.id, call.attempt, reason, counted, clocks))
    return None


def _end(
    decision: Decision,
    call: Call,
    outcome: str,
    input_tokens: int = 0,
    output_tokens: int = 0,
    first_token_s: float = 0.0,
    cached_tokens: int = 0,
    *,
    adapter_loaded: bool = False,
) -> None:
    state = decision.state
    if not (0 <= input_tokens <= _TOKENS_MAX and 0 <= output_tokens <= _TOKENS_MAX):
        input_tokens, output_tokens = _clamp_tokens(input_tokens), _clamp_tokens(output_tokens)
    if not 0.0 <= first_token_s <= _FIRST_TOKEN_MAX_S:
        first_token_s = 0.0
    if cached_tokens:
        cached_tokens = _cached_tokens(state, cached_tokens, input_tokens)
    served = state.settings.charge(input_tokens, output_tokens, cached_tokens, adapter_loaded=adapter_loaded)
    if not 0.0 <= served <= COST_MAX:
        served = clamp_cost(served)
    clocks = state.order.settle(call.tenant, call, served, call.swap_service)
    virtual_time = state.virtual_time
    if not state.waiting and _leaves_a_slot_free(state, call):
        virtual_time = state.order.ended_idle(clocks, virtual_time)
    decision.add(
        made(
            Ended,
            (
                call.id, call.attempt, outcome, input_tokens, output_tokens, served, clocks, virtual_time,
                first_token_s, cached_tokens,
            ),
        )
    )  # fmt: skip
    if not state.order.is_conserving:  # for all other orders `decide` gives the slots away
        dispatch_next(decision)


def _clamp_tokens(tokens: int) -> int:
    """Return a count that can be charged, for a count of an engine that cannot (NaN is 0)."""
    return int(min(max(0, tokens), _TOKENS_MAX)) if tokens == tokens else 0


def _cached_tokens(state: State, tokens: int, input_tokens: int) -> int:
    """Return the cached tokens of an end that the log's format can hold."""
    return min(_clamp_tokens(tokens), input_tokens) if state.format > OLDEST else 0


def _leaves_a_slot_free(state: State, call: Call) -> bool:
    worker = state.workers[call.worker]
    return (worker.slots_open > 0 and worker.free >= 0) or state.slots.first(call.model) is not None


def _rest_if_failing(decision: Decision, worker_id: str) -> None:
    state = decision.state
    worker = state.workers.get(worker_id)
    if worker is not None and worker.is_failing and worker.config.state == "serving":
        decision.add(worker.config._replace(state="resting", until=state.at + state.settings.rest_s))


def _running(state: State, call_id: str, attempt: int) -> Call | None:
    call = state.calls.get(call_id)
    return call if call is not None and call.worker and call.attempt == attempt else None


def _known_end(state: State, call_id: str, attempt: int) -> Outcome:
    """Return how this attempt ended. Unknown if its end is forgotten, or if another attempt ended the call."""
    over = state.ends.get(call_id)
    return over if over is not None and over.attempt == attempt else Unknown(call_id)
