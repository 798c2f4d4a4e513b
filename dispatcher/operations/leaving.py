"""Removes a call from the gate, so that none of its offers stays open. `begun` is the highest attempt begun here."""

from __future__ import annotations

from dispatcher.model.commands import Cancel, Done, Offer, Outcome, Over, Refused, Return, Status, Unknown, Waiting
from dispatcher.model.errors import StoreUnavailable
from dispatcher.operations.calls import Call, accept_of
from dispatcher.operations.context import Context
from dispatcher.operations.ends import kept_answer

TAKE_BACK_TRIES = 3
"""How many times `take_back` tries. Each try lasts up to the link's own time limit."""
TAKE_BACK_S = 1.0
"""The pause between two tries."""


async def give_back(context: Context, call: Call, attempt: int, worker: str) -> Outcome | None:
    """Return an attempt to the gate that no worker has begun. Only this process could have begun it."""
    outcome = await context.link.do(Return(call.id, attempt, "unreachable", worker))
    if isinstance(outcome, Refused):
        return None
    # After the return the gate knows whether there is a next attempt; also if it does not know this attempt.
    return await context.link.do(Status(call.id)) if isinstance(outcome, Unknown | Done) else outcome


async def cancel(context: Context, call: Call, outcome: str, begun: int) -> None:
    """Cancel the call. If an offer was made meanwhile, give it back at once, because it is not begun here."""
    cancelled = await context.link.do(Cancel(call.id, outcome))
    if isinstance(cancelled, Done):
        cancelled = await context.link.do(Status(call.id))
    if isinstance(cancelled, Offer) and cancelled.attempt > begun:
        await context.link.do(Return(call.id, cancelled.attempt, "declined", cancelled.worker))
    elif isinstance(cancelled, Over):
        await kept_answer(context, call, cancelled)


async def let_go(context: Context, call: Call, begun: int) -> None:
    """Stop holding a durable call. The gate launches any attempt above `begun`."""
    outcome = await context.link.do(accept_of(call, context.link, ""))
    if isinstance(outcome, Offer) and outcome.attempt > begun:
        await context.launcher.launch(call.id, outcome.attempt)


async def take_back(context: Context, call: Call, begun: int) -> None:
    """Cancel a call after a command without an answer, because the command may be in the log.

    Without this, the gate would offer the call again and again. No task would begin the offers; each would hold a slot,
    and suspend all calls of this process.
    """
    for _ in range(TAKE_BACK_TRIES):
        try:
            # Not Cancel at once: within an entry it is decided before the Accept that it is about, Status after it.
            outcome = await context.link.do(Status(call.id))
            if not isinstance(outcome, Waiting | Offer):
                return None
            if call.is_durable:
                return await _let_go_unless_followed(context, call, begun)
            return await cancel(context, call, "cancelled", begun)
        except StoreUnavailable:
            await context.clock.sleep(TAKE_BACK_S)
    return None


async def _let_go_unless_followed(context: Context, call: Call, begun: int) -> None:
    """Let a call go that no task of this process follows. A repeat of its key may follow it again."""
    if call.id in context.durable_calls:
        return
    try:
        await let_go(context, call, begun)
    finally:
        if call.id not in context.durable_calls:
            context.link.forget(call.id)  # its Accept has made the link keep news of the call again
