"""settle: the end of every execution. True service replaces the estimate, once, fenced by the attempt.

Every path ends here: success, error, disconnect, deadline, lost lease. The front that streamed the answer settles, or
the worker after its gate disappeared, or the sweep. The store accepts exactly one of them.
"""

from __future__ import annotations

from dispatcher.model.errors import WorkerFailed
from dispatcher.model.old_invocation import Invocation, Result, State, ended, may_retry
from dispatcher.model.old_outcomes import Settled
from dispatcher.old_operations.context import Context
from dispatcher.old_operations.drain import drain
from dispatcher.old_operations.results import error_result
from dispatcher.old_ports import Clock, InvocationStore, Store
from dispatcher.policies.clocks import settlement
from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction


async def settle(
    context: Context,
    invocation: Invocation,
    state: State,
    *,
    result: Result | None = None,
    input_tokens: int = 0,
    output_tokens: int = 0,
) -> Settled:
    """End a running invocation at its true service, and drain for the freed slot."""
    settled = await settle_in(
        context.store,
        context.clock,
        context.service,
        invocation,
        state,
        result=result,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
    )
    context.spawn(drain(context, invocation.pool))
    return settled


async def settle_in(
    store: InvocationStore,
    clock: Clock,
    service: ServiceFunction,
    invocation: Invocation,
    state: State,
    *,
    result: Result | None = None,
    input_tokens: int = 0,
    output_tokens: int = 0,
) -> Settled:
    """Settle without a drain: for a worker that lost its gate."""
    if invocation.charge is None:
        raise ValueError("only a running invocation is settled")
    served = service(input_tokens, output_tokens)
    over = ended(
        invocation,
        state,
        clock.now(),
        result=result,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        served=served,
    )
    tat, vft = settlement(invocation.charge, served)
    return await store.settle(over, tat, vft)


async def settle_lost(
    store: Store,
    clock: Clock,
    tenant: str,
    invocation_id: str,
    attempt: int,
    *,
    input_tokens: int,
    output_tokens: int,
) -> Settled:
    """Settle for a worker that lost its gate: cancelled, and charged for the generated tokens."""
    invocation = await store.get(tenant, invocation_id)
    if invocation is None or invocation.state is not State.RUNNING or invocation.attempt != attempt:
        return Settled.FENCED
    return await settle_in(
        store,
        clock,
        WEIGHTED_TOKENS,
        invocation,
        State.CANCELLED,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
    )


async def give_back(context: Context, invocation: Invocation, *, holding: bool = False) -> Invocation | None:
    """Requeue and refund a lost execution of which no token reached the caller, and return the invocation.

    None if it may not be tried again: then it is ended and refunded. The attempt number fences the lost execution.
    `holding`: the calling process has the request, so the store need not have kept it.
    """
    if not may_retry(invocation, context.clock.now(), holding=holding):
        await settle(context, invocation, State.FAILED, result=error_result(WorkerFailed()))
        return None
    if invocation.charge is None:
        raise ValueError("only a running invocation is given back")
    tat, vft = settlement(invocation.charge, 0.0)
    await context.store.requeue(invocation, tat, vft)
    context.spawn(drain(context, invocation.pool))
    return await context.store.get(invocation.tenant, invocation.id)
