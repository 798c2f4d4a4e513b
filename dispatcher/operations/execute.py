"""execute: one attempt on one worker, settled before its last event is passed on.

An attempt that is lost before anything reached a caller is given back to its line and tried again under the next
number; one that is lost later ends, charged for what was delivered. Closing the iterator is a disconnect: the worker
notices that its reader is gone, aborts the engine's work and settles the exact count itself.
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
from dispatcher.model.fleet import Worker
from dispatcher.model.invocation import Invocation, Result, State
from dispatcher.model.requests import Request, request_from_json
from dispatcher.model.tenants import Tenant
from dispatcher.model.worker_protocol import Finished, Started, Token, WorkEvent, WorkOrder, WorkRefused
from dispatcher.operations.context import Context
from dispatcher.operations.pools import tell_virtual_time
from dispatcher.operations.results import error_result
from dispatcher.operations.settle import give_back, settle

RUNNING_ALREADY = 409
RETRIED_STATUSES = frozenset({401, RUNNING_ALREADY})
"""Refusals below 500 that say something of the worker (its clock, what it runs) and nothing of the request."""
TURNED_AWAY = 429
PREEMPTED_CODES = frozenset({"preempted", "preempted_too_often"})
"""The worker is well, and did as it is told: to try again at once would make it do the same again."""


@dataclass(slots=True)
class Collected:
    """What an execution has delivered so far."""

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
    """The worker is executing this very attempt for somebody else, who will end it."""


async def attempt(
    context: Context,
    tenant: Tenant,
    invocation: Invocation,
    request: Request,
    worker: Worker | None,
    collected: Collected,
    render: Render | None,
) -> AsyncGenerator[WorkEvent, None]:
    """One execution on one worker, settled before its last event is passed on. Raises WorkerFailed unsettled."""
    if worker is None:
        raise WorkerFailed("The worker that was chosen is gone.")
    order = _order(context, tenant, invocation, request)
    over = False
    async with aclosing(context.workers.execute(worker, order)) as events:
        async for event in events:
            collected.note(event)
            if isinstance(event, Started) and invocation.pool in context.virtual_times:
                context.spawn(tell_virtual_time(context, invocation.pool))
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
    """Execute what the drain dispatched and nobody holds. False where nothing is left to do: a message is a hint."""
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
        return False  # the message came twice
    except WorkerFailed:
        await again_after(context, invocation, worker, collected, redo=True)
    except StoreUnavailable:
        raise  # not settled: the message is to come again
    except (TenantError, ServiceError):
        return True  # settled already, with the error as its answer
    return True


async def again_after(
    context: Context, invocation: Invocation, worker: Worker | None, collected: Collected, *, redo: bool = False
) -> Invocation | None:
    """After a lost attempt: the invocation back in its line, or None where it ended. `redo`: nothing was passed on."""
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
    """Settle it. A worker aborts what is late, but also what it has to give up: that one is lost, and not settled."""
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
    """Raises WorkerFailed for what another worker may serve; else settles, and raises the error that ends it."""
    if refusal.status == RUNNING_ALREADY:
        raise RunningAlready(f"The worker refused: {refusal.code}.")
    error = _ending(refusal)
    if error is None:
        raise WorkerFailed(f"The worker refused: {refusal.code}.")
    counts = {"input_tokens": collected.input_tokens, "output_tokens": collected.output_tokens}
    if not collected.output_tokens:
        counts = {}  # it was let in, and nothing came of it
    settling = settle(context, invocation, State.FAILED, result=error_result(error), **counts)
    await asyncio.shield(context.spawn(settling))
    raise error


def _ending(refusal: WorkRefused) -> AnsweredError | None:
    """The error that ends the invocation; None where it says something of the worker alone."""
    if refusal.code in PREEMPTED_CODES:
        return Preempted(refusal.message, refusal.code, refusal.retry_after_s)
    if refusal.status in RETRIED_STATUSES or refusal.status >= 500:
        return None
    if refusal.status == TURNED_AWAY:
        return Refused(refusal.message, refusal.code, refusal.retry_after_s)
    return TenantError(refusal.message, refusal.code, None, refusal.status, "invalid_request_error")


def _order(context: Context, tenant: Tenant, invocation: Invocation, request: Request) -> WorkOrder:
    if invocation.slot is None:
        raise ValueError("only a dispatched invocation is executed")
    return WorkOrder(
        tenant=tenant.name,
        invocation=invocation.id,
        attempt=invocation.attempt,
        slot=invocation.slot.number,
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
        cache_salt="",
    )
