"""submit: accept an invocation, and dispatch it at once or queue it.

Requests to the store (tests/unit/test_round_trips.py counts them): one snapshot and one transaction for a dispatch or
for queueing; three in all if another arrival took the slot between the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dispatcher.model.errors import IdempotencyConflict, InvalidRequest, Refused, StoreUnavailable, UnknownModel
from dispatcher.model.old_fleet import Snapshot, Worker
from dispatcher.model.old_invocation import Invocation, dispatched
from dispatcher.model.old_outcomes import Dispatched, Known, Queued, Submitted, Written
from dispatcher.model.requests import Request
from dispatcher.model.tenants import Tenant
from dispatcher.old_operations.context import Context
from dispatcher.old_operations.pools import note_backlog, note_virtual_time
from dispatcher.old_operations.results import is_retryable
from dispatcher.old_operations.slots import free_slot, require_worker
from dispatcher.policies.clocks import debit, lift

ENQUEUE_TRIES = 4
"""Most tries to append to a queue that changes. Each lost try means that another write succeeded."""
RETRIES_PER_ID_MAX = 16
"""Most new tries of one id after a retryable error. Later ones get the last such error again. Each of them costs one
snapshot and one transaction more at the next try."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A request from a front, its id, and what to keep of it."""

    tenant: Tenant
    request: Request
    id: str
    deadline_s: float
    keep_body: bool
    """Keep the request with the invocation, so that another process can execute it after a lost attempt."""
    keep_answer: bool = False
    """Keep the answer for a later request under the same id."""
    detached: bool = False


async def submit(context: Context, submission: Submission) -> Submitted:
    """Accept the request. Return Dispatched, Queued, or Known if the same id was submitted before.

    If that earlier invocation ended with a retryable error (a worker shed or preempted it), the request is accepted
    again. Its new invocation has the id with `~` and a number behind it; a caller's own id cannot contain `~`.

    Raises UnknownModel, NoWorker, InvalidRequest (prompt or max_tokens beyond the model or the tenant's limit),
    Refused (queue full), IdempotencyConflict, StoreUnavailable.
    """
    for number in range(RETRIES_PER_ID_MAX):
        submitted = await _submit(context, replace(submission, id=_numbered(submission.id, number)))
        if not (isinstance(submitted, Known) and is_retryable(submitted.invocation)):
            break
    return submitted


async def latest(context: Context, tenant: str, invocation_id: str) -> Invocation | None:
    """Return the last invocation under an id, or None."""
    found: Invocation | None = None
    for number in range(RETRIES_PER_ID_MAX):
        invocation = await context.store.get(tenant, _numbered(invocation_id, number))
        found = invocation or found
        if invocation is None or not is_retryable(invocation):
            break
    return found


def _numbered(invocation_id: str, number: int) -> str:
    return f"{invocation_id}~{number}" if number else invocation_id


async def _submit(context: Context, submission: Submission) -> Submitted:
    tenant = submission.tenant
    snapshot = await context.store.snapshot(tenant.pool, tenant.queue)
    context.remember(snapshot.workers)
    now = context.clock.now()
    invocation = _checked(context, submission, snapshot, now)
    if not snapshot.pool.backlogged and snapshot.queue.waiting == 0:
        admitted = await _admit(context, tenant, invocation, snapshot, now)
        if admitted is not None:
            return admitted
    return await _enqueue(context, tenant, invocation, snapshot)


def _checked(context: Context, submission: Submission, snapshot: Snapshot, now: float) -> Invocation:
    """Return the invocation to accept. All refusals that need no write are raised here."""
    tenant, request = submission.tenant, submission.request
    worker = _model_of(tenant, request, snapshot, now)
    max_tokens = request.max_tokens or min(context.settings.default_max_tokens, tenant.max_tokens_max)
    if not 1 <= max_tokens <= tenant.max_tokens_max:
        raise InvalidRequest(f"max_tokens is at most {tenant.max_tokens_max} for this key.", "max_tokens")
    input_tokens = math.ceil(request.prompt_bytes() / worker.bytes_per_token)
    if worker.context_tokens and input_tokens + max_tokens > worker.context_tokens:
        message = (
            f"This model's context is {worker.context_tokens} tokens; the prompt has about {input_tokens} "
            f"and max_tokens asks for {max_tokens}."
        )
        raise InvalidRequest(message, "messages" if request.chat else "prompt", "context_length_exceeded")
    return Invocation(
        tenant=tenant.name,
        id=submission.id,
        queue=tenant.queue,
        pool=tenant.pool,
        model=request.model,
        fingerprint=request.fingerprint(),
        arrived_at=now,
        deadline_at=now + min(submission.deadline_s, context.settings.deadline_s),
        estimate=context.service(input_tokens, max_tokens),
        config_version=tenant.version,
        detached=submission.detached,
        body=request.to_json() if submission.keep_body else None,
    )


def _model_of(tenant: Tenant, request: Request, snapshot: Snapshot, now: float) -> Worker:
    known = [worker for worker in snapshot.workers if worker.model == request.model]
    barred = tenant.models is not None and request.model not in tenant.models
    if barred or (not known and any(now < worker.alive_until for worker in snapshot.workers)):
        raise UnknownModel(request.model)
    require_worker(known, request.model, now)
    return known[0]


async def _admit(
    context: Context, tenant: Tenant, invocation: Invocation, snapshot: Snapshot, now: float
) -> Submitted | None:
    """Dispatch at once (the fast path). None if the invocation has to queue."""
    slot = free_slot(context, snapshot.workers, invocation.model, now)
    if slot is None:
        return None
    charged = debit(
        snapshot.queue.clocks,
        tenant.share,
        invocation.estimate,
        now,
        snapshot.pool.virtual_time,
        rate_scale=snapshot.pool.rate_scale,
        lead_max=context.settings.lead_max,
    )
    running = dispatched(invocation, slot, charged.charge, now)
    written = await context.store.admit(running, charged, now)
    if written is Written.EXISTS:
        return await _known(context, invocation)
    if written is not Written.DONE:
        return None
    note_virtual_time(context, snapshot.pool, charged.start_stamp)
    worker = next(worker for worker in snapshot.workers if worker.id == slot.worker)
    return Dispatched(running, worker)


async def _enqueue(context: Context, tenant: Tenant, invocation: Invocation, snapshot: Snapshot) -> Submitted:
    for _ in range(ENQUEUE_TRIES):
        queue, pool = snapshot.queue, snapshot.pool
        step = None if queue.waiting else lift(queue.clocks, pool.virtual_time, lead_max=context.settings.lead_max)
        written = await context.store.enqueue(invocation, step, tenant.queue_items_max)
        if written is Written.DONE:
            note_backlog(context, pool.name)
            return Queued(invocation, queue.waiting + 1, _wait_s(invocation, snapshot, queue.waiting + 1))
        if written is Written.EXISTS:
            return await _known(context, invocation)
        if written is Written.FULL:
            raise _queue_full(tenant, invocation, snapshot)
        snapshot = await context.store.snapshot(tenant.pool, tenant.queue)
    raise StoreUnavailable("The tenant's queue is changing too fast; try again.")


async def _known(context: Context, invocation: Invocation) -> Known:
    earlier = await context.store.get(invocation.tenant, invocation.id)
    if earlier is None or earlier.fingerprint != invocation.fingerprint:
        raise IdempotencyConflict()
    return Known(earlier)


def _wait_s(invocation: Invocation, snapshot: Snapshot, position: int) -> float:
    """Return the tenant's own backlog over the pool's measured capacity: a lower bound while other tenants wait too."""
    capacity = sum(worker.service_per_s for worker in snapshot.workers if worker.model == invocation.model)
    return position * invocation.estimate / capacity if capacity > 0 else float(position)


def _queue_full(tenant: Tenant, invocation: Invocation, snapshot: Snapshot) -> Refused:
    wait_s = _wait_s(invocation, snapshot, max(1, snapshot.queue.waiting // 2))
    after_s = max(1, math.ceil(wait_s))
    message = (
        f"{tenant.queue_items_max} of this tenant's requests are waiting already, which is its limit. "
        f"Try again in about {after_s} s."
    )
    return Refused(message, "queue_full", float(after_s))
