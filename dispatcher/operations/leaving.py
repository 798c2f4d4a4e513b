"""What a process does so that nothing of a call stays behind at the gate. `begun`: the highest attempt begun here."""

from __future__ import annotations

from dispatcher.model.commands import Cancel, Done, Offer, Outcome, Over, Refused, Return, Status, Unknown, Waiting
from dispatcher.model.errors import StoreUnavailable
from dispatcher.operations.calls import Call, accept_of
from dispatcher.operations.context import Context
from dispatcher.operations.ends import kept_answer

TAKE_BACK_TRIES = 3
"""How often a call is taken back whose command the gate did not answer. Each try lasts as long as the link's."""
TAKE_BACK_S = 1.0
"""The pause between two tries."""


async def give_back(context: Context, call: Call, attempt: int, worker: str) -> Outcome | None:
    """Return an attempt that the worker did not begin and that this process alone could begin."""
    outcome = await context.link.do(Return(call.id, attempt, "unreachable", worker))
    if isinstance(outcome, Refused):
        return None
    # After a return, and also if only this attempt is unknown, the gate knows whether there is a next one.
    return await context.link.do(Status(call.id)) if isinstance(outcome, Unknown | Done) else outcome


async def cancel(context: Context, call: Call, outcome: str, begun: int) -> None:
    """Cancel the call. An offer that was made meanwhile and is not begun here is given back at once."""
    cancelled = await context.link.do(Cancel(call.id, outcome))
    if isinstance(cancelled, Done):
        cancelled = await context.link.do(Status(call.id))
    if isinstance(cancelled, Offer) and cancelled.attempt > begun:
        await context.link.do(Return(call.id, cancelled.attempt, "declined", cancelled.worker))
    elif isinstance(cancelled, Over):
        await kept_answer(context, call, cancelled)


async def let_go(context: Context, call: Call, begun: int) -> None:
    """Hold a durable call no more. `begun`: the highest attempt that was begun here; a later one is launched."""
    outcome = await context.link.do(accept_of(call, context.link, ""))
    if isinstance(outcome, Offer) and outcome.attempt > begun:
        await context.launcher.launch(call.id, outcome.attempt)


async def take_back(context: Context, call: Call, begun: int) -> None:
    """Leave nothing at the gate after a command without an answer: the log may have it all the same.

    An offer that no task begins would suspend all calls of this process, and hold a slot, again and again.
    """
    for _ in range(TAKE_BACK_TRIES):
        try:
            if not call.is_durable:
                return await cancel(context, call, "cancelled", begun)
            outcome = await context.link.do(Status(call.id))
            if isinstance(outcome, Waiting | Offer):
                await let_go(context, call, begun)
            return None
        except StoreUnavailable:
            await context.clock.sleep(TAKE_BACK_S)
    return None
