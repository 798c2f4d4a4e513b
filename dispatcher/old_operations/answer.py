"""answer: follow an accepted invocation to its end, for a caller on an open connection.

Closing the iterator is a disconnect: a waiting invocation is cancelled (for a running one see operations/execute.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from math import inf

from dispatcher.model.errors import DeadlineExceeded, UnknownInvocation, WorkerFailed
from dispatcher.model.old_fleet import Worker
from dispatcher.model.old_invocation import Invocation, Result, State, ended
from dispatcher.model.old_outcomes import Dispatched, Known, Queued, Settled, Written
from dispatcher.model.worker_protocol import WorkEvent
from dispatcher.old_operations.context import Context
from dispatcher.old_operations.drain import drain
from dispatcher.old_operations.execute import Collected, Render, attempt, retry_or_end
from dispatcher.old_operations.results import cancelled, error_of, error_result
from dispatcher.old_operations.settle import settle
from dispatcher.old_operations.submit import Submission
from dispatcher.old_operations.wakeups import ANY_CHANGE, TERMINAL


async def answer(
    context: Context, submission: Submission, accepted: Dispatched | Queued, render: Render | None = None
) -> AsyncGenerator[WorkEvent, None]:
    """Yield events until the invocation is settled. With `render`, its answer is kept for a later request.

    Raises TenantError if the worker finds the request impossible, WorkerFailed, DeadlineExceeded.
    """
    invocation, request = accepted.invocation, submission.request
    worker = accepted.worker if isinstance(accepted, Dispatched) else None
    while True:
        if worker is None:
            invocation, worker = await _dispatched(context, invocation)
        collected = Collected()
        try:
            async with aclosing(
                attempt(context, submission.tenant, invocation, request, worker, collected, render)
            ) as events:
                async for event in events:
                    yield event
            return
        except WorkerFailed:
            again = await _given_back(context, invocation, worker, collected)
            if again is None:
                raise
            invocation, worker = again, None


async def result_of(context: Context, known: Known, timeout_s: float = inf) -> Result:
    """Return the answer of a known invocation; wait at most `timeout_s` seconds if it has not ended.

    Raises the error with which it ended, or DeadlineExceeded.
    """
    invocation: Invocation | None = known.invocation
    if invocation is not None and not invocation.state.is_terminal:
        remaining = min(timeout_s, invocation.deadline_at - context.clock.now())
        ended_meanwhile = await context.wakeups.wait(invocation, TERMINAL, remaining, partial(drain, context))
        invocation = ended_meanwhile or await context.store.get(invocation.tenant, invocation.id)
    if invocation is None or not invocation.state.is_terminal:
        raise DeadlineExceeded()
    if invocation.result is None:
        raise cancelled() if invocation.state is State.CANCELLED else UnknownInvocation()
    if invocation.state is not State.DONE:
        raise error_of(invocation.result)
    return invocation.result


async def abandon(
    context: Context, invocation: Invocation, state: State = State.CANCELLED, result: Result | None = None
) -> None:
    """End an invocation after its caller left, also if it has been dispatched in the meantime."""
    if invocation.state.is_terminal:
        return
    gone = ended(invocation, state, context.clock.now(), result=result)
    if await context.store.drop(gone) is Settled.SETTLED:
        return
    current = await context.store.get(invocation.tenant, invocation.id)
    if current is not None and current.state is State.RUNNING:
        await settle(context, current, state, result=result)


async def wait_or_detach(context: Context, invocation: Invocation, timeout_s: float) -> Dispatched | None:
    """Wait for the dispatch at most `timeout_s` seconds. After that detach it: the SQS consumer executes it (None).

    The request must be in the invocation's `body`. Raises the error with which it ended, if it ended.
    """
    context.spawn(drain(context, invocation.pool))
    waiting = context.wakeups.wait(invocation, ANY_CHANGE, timeout_s, partial(drain, context))
    current = await waiting
    if current is None and await context.store.detach(invocation.tenant, invocation.id) is Written.DONE:
        return None
    current = current or await context.store.get(invocation.tenant, invocation.id)
    running = _running(current)
    worker = await context.worker_of(running)
    if worker is None:
        raise WorkerFailed("The worker that was chosen is gone.")
    return Dispatched(running, worker)


async def _given_back(
    context: Context, invocation: Invocation, worker: Worker | None, collected: Collected
) -> Invocation | None:
    """Call `retry_or_end`. If the caller disconnects meanwhile, finish it all the same and then end the invocation."""
    giving = context.spawn(retry_or_end(context, invocation, worker, collected))
    try:
        return await asyncio.shield(giving)
    except asyncio.CancelledError:
        context.spawn(_abandon_once_back(context, giving))
        raise


async def _abandon_once_back(context: Context, giving: asyncio.Task[Invocation | None]) -> None:
    again = await giving
    if again is not None:
        await abandon(context, again)


async def _dispatched(context: Context, invocation: Invocation) -> tuple[Invocation, Worker | None]:
    """Wait until a drain, here or elsewhere, has dispatched it. Return it with its worker."""
    context.spawn(drain(context, invocation.pool))
    remaining = invocation.deadline_at - context.clock.now()
    try:
        current = await context.wakeups.wait(invocation, ANY_CHANGE, remaining, partial(drain, context))
        if current is not None:
            running = _running(current)
            return running, await context.worker_of(running)
    except asyncio.CancelledError:
        context.spawn(abandon(context, invocation))
        raise
    late = DeadlineExceeded()
    context.spawn(abandon(context, invocation, State.EXPIRED, error_result(late)))
    raise late


def _running(current: Invocation | None) -> Invocation:
    """Return the invocation if it is running; else raise the error with which it ended."""
    if current is None or current.state is not State.RUNNING:
        raise error_of(current.result) if current is not None and current.result else DeadlineExceeded()
    return current
