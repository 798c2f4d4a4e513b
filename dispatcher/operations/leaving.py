"""Removes a call from the gate, so that none of its offers stays open.

`begun` is the highest attempt that this process has begun.
"""

from __future__ import annotations

from dispatcher.model.commands import Cancel, Done, Offer, Outcome, Over, Refused, Return, Status, Unknown, Waiting
from dispatcher.model.errors import StoreUnavailable
from dispatcher.operations.calls import Call, accept_of
from dispatcher.operations.context import Context
from dispatcher.operations.ends import kept_answer

TAKE_BACK_S = 1.0
TAKE_BACK_MAX_S = 8.0
"""The first and the longest pause between two tries of `take_back`. Each pause is twice as long as the one before."""


async def give_back(context: Context, call: Call, attempt: int, worker: str) -> Outcome | None:
    """Return an attempt to the gate that no worker has begun. Only this process could have begun it. Return the call's
    state after that."""
    outcome = await context.link(call.pool).do(Return(call.id, attempt, "unreachable", worker))
    if isinstance(outcome, Refused):
        return None
    # The gate knows whether there is a next attempt, even if it does not know this one.
    return await context.link(call.pool).do(Status(call.id)) if isinstance(outcome, Unknown | Done) else outcome


async def cancel(context: Context, call: Call, outcome: str, begun: int) -> None:
    """Cancel the call. If the gate has offered a newer attempt meanwhile, return that attempt at once."""
    cancelled = await context.link(call.pool).do(Cancel(call.id, outcome))
    if isinstance(cancelled, Done):
        cancelled = await context.link(call.pool).do(Status(call.id))
    if isinstance(cancelled, Offer) and cancelled.attempt > begun:
        await context.link(call.pool).do(Return(call.id, cancelled.attempt, "declined", cancelled.worker))
    elif isinstance(cancelled, Over):
        await kept_answer(context, call, cancelled)


async def let_go(context: Context, call: Call, begun: int) -> None:
    """Stop holding a durable call. If the gate has offered an attempt above `begun`, launch it for an executor."""
    outcome = await context.link(call.pool).do(accept_of(call, context.link(call.pool), ""))
    if isinstance(outcome, Offer) and outcome.attempt > begun:
        await context.launcher.launch(call.id, outcome.attempt)


async def take_back(context: Context, call: Call, begun: int) -> None:
    """Cancel a call, or stop holding a durable one, after a command without an answer. The command may be in the log.

    Otherwise the gate would offer the call again and again, and no task would begin the offers. Each would hold a slot
    for a while, and suspend all calls of this process. So this goes on until the gate answers, or until the call's
    deadline, at which the gate ends the call.
    """
    pause_s = TAKE_BACK_S
    while True:
        try:
            # Status comes before Cancel: within an entry, a Cancel is decided before the Accept of the same call, and a
            # Status after it.
            outcome = await context.link(call.pool).do(Status(call.id))
            if not isinstance(outcome, Waiting | Offer):
                return None
            if call.is_durable:
                return await _let_go_unless_followed(context, call, begun)
            return await cancel(context, call, "cancelled", begun)
        except StoreUnavailable:
            if context.clock.now() >= call.terms.deadline_at:
                return None
            await context.clock.sleep(pause_s)
            pause_s = min(2 * pause_s, TAKE_BACK_MAX_S)


async def _let_go_unless_followed(context: Context, call: Call, begun: int) -> None:
    """Stop holding a call, unless a task of this process follows it: a repetition of its key may have begun one."""
    following = context.durable_calls.get(call.id)
    if following is not None and not following.is_over:
        return
    try:
        await let_go(context, call, begun)
    finally:
        if call.id not in context.durable_calls:
            context.link(call.pool).forget(call.id)  # its Accept has made the link keep news of the call again
