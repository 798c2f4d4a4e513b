"""Execution of durable calls that no caller waits for: any process can do it, from the item's body.

A message names a call that the gate dispatched. It is only a hint: the gate is asked first, and a duplicate, late or
reordered message finds the call over, held here already, or under another attempt.
"""

from __future__ import annotations

import asyncio

from dispatcher.model.commands import Cancel, End, Offer, Status, Waiting
from dispatcher.model.errors import NoWorker, StoreUnavailable, UnknownModel
from dispatcher.model.invocation import Answer, Invocation
from dispatcher.model.requests import request_from_json
from dispatcher.model.tenants import Tenant
from dispatcher.operations.calls import Call
from dispatcher.operations.context import Context
from dispatcher.operations.following import Following
from dispatcher.operations.submit import max_tokens_of

HOLD_S = 10.0
"""If the attempt of the message was returned meanwhile, this process waits so long for the next one."""


async def execute_detached(context: Context, call_id: str) -> bool:
    """Execute a durable call to its end. False if nothing is left to do here.

    Raises StoreUnavailable: the message must be delivered again.
    """
    call = await _call_to_execute(context, call_id)
    while call is not None and (here := context.durable_calls.get(call_id)) is not None:
        if await here.hold_again():
            return False
        await here.ended.wait()
        call = await _call_to_execute(context, call_id)
    return call is not None and await _followed(Following(context, call, None, unread=True))


async def serve_launched(context: Context) -> None:
    """Execute what the leader gives to this process, until cancelled. For a process that stays."""
    while True:
        call_id, _ = await context.link.launched()
        context.spawn(execute_detached(context, call_id))


async def _call_to_execute(context: Context, call_id: str) -> Call | None:
    """Return the call, or None if there is nothing to execute (any more)."""
    item = await context.store.get(call_id)
    if item is not None and item.answer is not None:
        await _end_as_kept(context, item, item.answer)
    if item is None or item.body is None or item.answer is not None:
        return None
    tenant = await context.directory.tenant_named(item.tenant)
    if tenant is None:
        await context.link.do(Cancel(call_id, "cancelled"))
        return None
    return await _call_of(context, tenant, item)


async def _end_as_kept(context: Context, item: Invocation, answer: Answer) -> None:
    """End a call whose answer is kept while the log still offers it: the process that kept it did not write its end."""
    outcome = await context.link.do(Status(item.id))
    if isinstance(outcome, Offer):
        counts = answer.input_tokens, answer.output_tokens
        end = End(item.id, outcome.attempt, answer.outcome, *counts, tenant=item.tenant, answer=answer.body)
        await context.link.do(end._replace(unbegun=True))


async def _followed(following: Following) -> bool:
    """Wait for the end of the call; let it go if no offer of it comes here within HOLD_S."""
    try:
        if not isinstance(await following.first(), Waiting | Offer):
            return False
        try:
            async with asyncio.timeout(HOLD_S):
                await following.begun.wait()
        except TimeoutError:
            return False
        await following.ended.wait()
    finally:
        following.leave()
    if isinstance(following.error, StoreUnavailable):
        raise following.error
    return True


async def _call_of(context: Context, tenant: Tenant, item: Invocation) -> Call:
    request = request_from_json(item.body or "{}")
    max_tokens = max_tokens_of(context, tenant, request)
    try:
        bytes_per_token = (await context.fleet.worker_for(tenant, item.model)).bytes_per_token
    except (NoWorker, UnknownModel):
        bytes_per_token = 1.0
    # Of weight only if its process stopped before the gate accepted the call: else the gate knows its cost.
    cost = context.service(round(request.prompt_bytes() / bytes_per_token), max_tokens)
    return Call(item.id, tenant, request, max_tokens, cost, item.created_at, item.deadline_at, item.key)
