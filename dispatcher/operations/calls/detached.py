"""Executes durable calls that no caller waits for. Any process can do it, because the stored item contains the request.

A message names a call that the gate dispatched. The message is only a hint: this module asks the gate for the call's
state first. So a message that is duplicate, late or out of order does no harm. The call may then be over, held by this
process already, or dispatched again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from dispatcher.fields.parse import unread_fields
from dispatcher.model.commands import Cancel, End, Offer, Status, Waiting
from dispatcher.model.errors import NoWorker, StoreUnavailable, UnknownModel
from dispatcher.model.kept import Invocation, StoredAnswer, priced_details_of
from dispatcher.model.requests import request_from_json
from dispatcher.model.tenants import Tenant
from dispatcher.operations.calls.call import Call, new_terms, output_limit, stored_class
from dispatcher.operations.calls.following import Following
from dispatcher.operations.context import Context
from dispatcher.operations.pools import Pool

HOLD_S = 10.0
"""The wait for the next attempt if the attempt of the message was returned meanwhile."""


async def execute_detached(context: Context, call_id: str) -> bool:
    """Execute a durable call to its end. Return False if this process has nothing to execute.

    Raises StoreUnavailable; then the message must be delivered again.
    """
    call = await _call_to_execute(context, call_id)
    while call is not None and (here := context.durable_calls.get(call_id)) is not None:
        if await here.hold_again():
            return False
        await here.ended.wait()
        call = await _call_to_execute(context, call_id)
    return call is not None and await _await_end(Following(context, call, None, unread=True))


async def serve_launched(context: Context, pool: Pool) -> None:
    """Execute the calls that the pool's leader launches on this process, until cancelled. For a process that runs for
    long."""
    while True:
        call_id, _ = await pool.link.launched()
        context.spawn(execute_detached(context, call_id))


async def _call_to_execute(context: Context, call_id: str) -> Call | None:
    """Return the call, or None if it needs no execution (any more)."""
    item = await context.store.get(call_id)
    if item is not None and item.answer is not None:
        await _end_as_kept(context, item, item.answer)
    if item is None or item.body is None or item.answer is not None:
        return None
    tenant = await context.directory.tenant_of_identity(item.tenant)
    if tenant is None:
        await (await context.pools.holding(item)).link.do(Cancel(call_id, "cancelled"))
        return None
    return await _call_of(context, tenant, item)


async def _end_as_kept(context: Context, item: Invocation, answer: StoredAnswer) -> None:
    """End a call with a stored answer that has no end in the log, because the process that stored the answer died."""
    link = (await context.pools.holding(item)).link
    outcome = await link.do(Status(item.id))
    if isinstance(outcome, Waiting | Offer):
        attempt = outcome.attempt if isinstance(outcome, Offer) else answer.attempt
        counts = answer.input_tokens, answer.output_tokens
        end = End(item.id, attempt, answer.outcome, *counts, tenant=item.tenant, answer=answer.body)
        await link.do(end._replace(unbegun=True, kept=True, **priced_details_of(answer)))


async def _await_end(following: Following) -> bool:
    """Wait for the end of the call. Let it go if this process gets no offer of it within HOLD_S."""
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
    pool = await context.pools.holding(item)
    limit = output_limit(request, tenant, context.settings.expected_tokens)
    model, bytes_per_token, unread = item.model, 1.0, frozenset[str]()
    with suppress(NoWorker, UnknownModel):
        worker = await pool.fleet.worker_for(tenant, item.model)
        model, bytes_per_token = worker.model, worker.bytes_per_token
        unread = unread_fields(request, pool.fleet.capabilities(model))
    # The gate already has the call's cost, unless the first process died before the gate accepted the call.
    input_tokens = round(request.prompt_bytes() / bytes_per_token)
    slo_class = stored_class(pool.slo_classes, request)
    terms = new_terms(
        tenant,
        request,
        model=model,
        cost=context.service(input_tokens, limit.likely_tokens * request.choices),
        input_tokens=input_tokens,
        times=(item.created_at, item.deadline_at),
        durable=bool(item.key),
        slo_class=slo_class,
    )
    return Call(
        item.id, tenant, request, limit, terms, item.created_at, item.key, unread, slo_class, item.trace, pool.name
    )
