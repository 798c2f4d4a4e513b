"""execute: one attempt on one worker, settled before its last event is passed on.

An attempt that is lost before any token reached a caller goes back to its queue, and is tried again under the next
attempt number. One that is lost later ends, and is charged for the delivered tokens. Closing the iterator is a
disconnect: the worker notices it, aborts the engine's work and settles the exact count itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from dispatcher.model.errors import (
    AnsweredError,
    DeadlineExceeded,
    Preempted,
    Refused,
    ServiceError,
    StoreUnavailable,
    TenantError,
    WorkerFailed,
)
from dispatcher.model.old_fleet import Worker
from dispatcher.model.old_invocation import Invocation, Result, State
from dispatcher.model.requests import Request, request_from_json
from dispatcher.model.tenants import Tenant
from dispatcher.model.worker_protocol import Finished, Started, Token, WorkEvent, WorkOrder, WorkRefused
from dispatcher.old_operations.context import Context
from dispatcher.old_operations.pools import write_virtual_time
from dispatcher.old_operations.results import error_result
from dispatcher.old_operations.settle import give_back, settle

RUNNING_ALREADY = 409
RETRIED_STATUSES = frozenset({401, RUNNING_ALREADY})
"""Refusals below 500 that the worker causes (its clock, an execution that it runs already), not the request."""
TOO_MANY_REQUESTS = 429
PREEMPTED_CODES = frozenset({"preempted", "preempted_too_often"})
"""The worker works as configured. A new try at once would end the same way."""


@dataclass(slots=True)
class Collected:
    """The text and the counts that an execution has delivered so far."""

    texts: list[str] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    reason: str = "stop"

    def note(self, event: WorkEvent) -> None:
        if isinstance(event, Started):
            self.input_tokens = event.input_tokens
        elif isinstance(event, Token):
            self.texts.append(event.text)
            self.output_tokens = event.output_tokens
        elif isinstance(event, Finished):
            self.input_tokens, self.output_tokens = event.input_tokens, event.output_tokens
            self.reason = event.reason

    @property
    def text(self) -> str:
        return "".join(self.texts)


Render = Callable[[Collected], Result]


class RunningAlready(WorkerFailed):
    """The worker executes this attempt already, for another process, which will settle it."""


async def attempt(
    context: Context,
    tenant: Tenant,
    invocation: Invocation,
    request: Request,
    worker: Worker | None,
    collected: Collected,
    render: Render | None,
) -> AsyncGenerator[WorkEvent, None]:
    """Execute once on one worker, and settle before the last event is yielded. Raises WorkerFailed without settling."""
    if worker is None:
        raise WorkerFailed("The worker that was chosen is gone.")
    order = _order(context, tenant, invocation, request)
    over = False
    async with aclosing(context.workers.execute(worker, order)) as events:
        async for event in events:
            collected.note(event)
            if isinstance(event, Started) and invocation.pool in context.virtual_times:
                context.spawn(write_virtual_time(context, invocation.pool))
            if isinstance(event, WorkRefused):
                await _refused(context, invocation, event, collected)
            elif isinstance(event, Finished):
                await _finished(context, invocation, collected, render)
                over = True
            yield event
    if not over:
        raise WorkerFailed()


async def execute_detached(
    context: Context, tenant: str, invocation_id: str, attempt_number: int, render: Callable[[Invocation], Render]
) -> bool:
    """Execute a detached invocation that the drain dispatched. False if nothing is left to do: a message is a hint."""
    invocation = await context.store.get(tenant, invocation_id)
    config = await context.directory.tenant_named(tenant)
    if invocation is None or config is None or invocation.body is None:
        return False
    if invocation.state is not State.RUNNING or invocation.attempt != attempt_number or not invocation.detached:
        return False
    worker = await context.worker_of(invocation)
    collected = Collected()
    request = request_from_json(invocation.body)
    try:
        async for _ in attempt(context, config, invocation, request, worker, collected, render(invocation)):
            pass
    except RunningAlready:
        return False  # a duplicate of the message
    except WorkerFailed:
        await retry_or_end(context, invocation, worker, collected, redo=True)
    except StoreUnavailable:
        raise  # not settled: SQS must deliver the message again
    except (TenantError, ServiceError):
        return True  # settled already, with the error as its answer
    return True


async def retry_or_end(
    context: Context, invocation: Invocation, worker: Worker | None, collected: Collected, *, redo: bool = False
) -> Invocation | None:
    """Requeue an invocation after a lost attempt and return it, or end it and return None.

    `redo`: no token reached a caller, so that it can be tried again even after its first token.
    """
    if worker is not None:
        context.suspect(worker, context.clock.now())
    if collected.output_tokens and not redo:
        await settle(
            context,
            invocation,
            State.FAILED,
            result=error_result(WorkerFailed()),
            input_tokens=collected.input_tokens,
            output_tokens=collected.output_tokens,
        )
        return None
    return await give_back(context, invocation, holding=not redo)


async def _finished(context: Context, invocation: Invocation, collected: Collected, render: Render | None) -> None:
    """Settle the invocation. Raises DeadlineExceeded if it is late.

    A worker aborts late requests, and also those that it has to abandon. The latter are lost: WorkerFailed is raised,
    and nothing is settled.
    """
    late = collected.reason == "aborted"
    if late and context.clock.now() < invocation.deadline_at - context.settings.lease_margin_s:
        raise WorkerFailed()
    result = error_result(DeadlineExceeded()) if late else render(collected) if render else None
    settling = settle(
        context,
        invocation,
        State.FAILED if late else State.DONE,
        result=result,
        input_tokens=collected.input_tokens,
        output_tokens=collected.output_tokens,
    )
    await asyncio.shield(context.spawn(settling))
    if late:
        raise DeadlineExceeded()


async def _refused(context: Context, invocation: Invocation, refusal: WorkRefused, collected: Collected) -> None:
    """Raise WorkerFailed if another worker may serve the request; else settle, and raise the error that ends it."""
    if refusal.status == RUNNING_ALREADY:
        raise RunningAlready(f"The worker refused: {refusal.code}.")
    error = _final_error(refusal)
    if error is None:
        raise WorkerFailed(f"The worker refused: {refusal.code}.")
    counts = {"input_tokens": collected.input_tokens, "output_tokens": collected.output_tokens}
    if not collected.output_tokens:
        counts = {}  # the worker accepted it but generated nothing: no charge
    settling = settle(context, invocation, State.FAILED, result=error_result(error), **counts)
    await asyncio.shield(context.spawn(settling))
    raise error


def _final_error(refusal: WorkRefused) -> AnsweredError | None:
    """Return the error that ends the invocation, or None if the refusal's cause is the worker alone."""
    if refusal.code in PREEMPTED_CODES:
        return Preempted(refusal.message, refusal.code, refusal.retry_after_s)
    if refusal.status in RETRIED_STATUSES or refusal.status >= 500:
        return None
    if refusal.status == TOO_MANY_REQUESTS:
        return Refused(refusal.message, refusal.code, refusal.retry_after_s)
    return TenantError(refusal.message, refusal.code, None, refusal.status, "invalid_request_error")


def _order(context: Context, tenant: Tenant, invocation: Invocation, request: Request) -> WorkOrder:
    if invocation.slot is None:
        raise ValueError("only a dispatched invocation is executed")
    return WorkOrder(
        tenant=tenant.name,
        invocation=invocation.id,
        attempt=invocation.attempt,
        model=request.model,
        weight=tenant.share.weight,
        tier=tenant.tier,
        deadline_at=invocation.deadline_at,
        prompt=request.prompt,
        messages=request.messages,
        max_tokens=request.max_tokens or min(context.settings.default_max_tokens, tenant.max_tokens_max),
        temperature=request.temperature,
        seed=request.seed,
        stop=request.stop,
        app=request.app,
        stage=request.stage,
        interaction=request.interaction,
        durable=invocation.detached,
        cache_salt="",
    )
