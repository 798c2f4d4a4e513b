"""submit: accept an invocation, and dispatch it at once or let it wait.

Requests to the store (tests/unit/test_round_trips.py counts them): one look and one transaction where it goes at
once; one look and one transaction where it queues; three in all where another arrival took the slot in between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dispatcher.model.errors import IdempotencyConflict, InvalidRequest, Refused, StoreUnavailable, UnknownModel
from dispatcher.model.fleet import Snapshot, Worker
from dispatcher.model.invocation import Invocation, dispatched
from dispatcher.model.outcomes import Dispatched, Known, Queued, Submitted, Written
from dispatcher.model.requests import Request
from dispatcher.model.tenants import Tenant
from dispatcher.operations.context import Context
from dispatcher.operations.pools import queued, raised
from dispatcher.operations.results import is_retryable
from dispatcher.operations.slots import free_slot, require_worker
from dispatcher.policies.clocks import debit, lift

ENQUEUE_TRIES = 4
"""How often a moving line is looked at again before giving up: each try lost means that another's write succeeded."""
TURNED_AWAY_MAX = 16
"""How often one id may be told to come back before the last such answer is all that it gets. Each costs a look and a
transaction more when it comes again."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What a front hands over: the request, under which id, and what to keep of it."""

    tenant: Tenant
    request: Request
    id: str
    deadline_s: float
    keep_body: bool
    """Keep the request with the invocation, so that an attempt after a lost one, or the queue, can execute it."""
    keep_answer: bool = False
    """Keep the answer for whoever asks again under the same id."""
    detached: bool = False


async def submit(context: Context, submission: Submission) -> Submitted:
    """Dispatched, Queued, or Known where the same id came before.

    An id whose invocation was answered with a time to come back (shed by a worker, or evicted there) is as good as new:
    who does come back, under the same key, is served then. It goes on under the id with a number behind `~`, which no
    caller's own id can have.

    Raises UnknownModel, NoWorker, InvalidRequest (prompt or max_tokens beyond the model or the tenant's limit),
    Refused (line full), IdempotencyConflict, StoreUnavailable.
    """
    for number in range(TURNED_AWAY_MAX):
        submitted = await _submit(context, replace(submission, id=_numbered(submission.id, number)))
        if not (isinstance(submitted, Known) and is_retryable(submitted.invocation)):
            break
    return submitted


async def latest(context: Context, tenant: str, invocation_id: str) -> Invocation | None:
    """What became of an id: of the last invocation that went on under it."""
    found: Invocation | None = None
    for number in range(TURNED_AWAY_MAX):
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
    """The invocation as it is accepted. Everything that can be refused is refused here, before anything is written."""
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
    """The fast path; None where the invocation has to queue."""
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
    raised(context, snapshot.pool, charged.start_stamp)
    worker = next(worker for worker in snapshot.workers if worker.id == slot.worker)
    return Dispatched(running, worker)


async def _enqueue(context: Context, tenant: Tenant, invocation: Invocation, snapshot: Snapshot) -> Submitted:
    for _ in range(ENQUEUE_TRIES):
        queue, pool = snapshot.queue, snapshot.pool
        step = None if queue.waiting else lift(queue.clocks, pool.virtual_time, lead_max=context.settings.lead_max)
        written = await context.store.enqueue(invocation, step, tenant.queue_items_max)
        if written is Written.DONE:
            queued(context, pool.name)
            return Queued(invocation, queue.waiting + 1, _wait_s(invocation, snapshot, queue.waiting + 1))
        if written is Written.EXISTS:
            return await _known(context, invocation)
        if written is Written.FULL:
            raise _queue_full(tenant, invocation, snapshot)
        snapshot = await context.store.snapshot(tenant.pool, tenant.queue)
    raise StoreUnavailable("The tenant's line is changing too fast; try again.")


async def _known(context: Context, invocation: Invocation) -> Known:
    earlier = await context.store.get(invocation.tenant, invocation.id)
    if earlier is None or earlier.fingerprint != invocation.fingerprint:
        raise IdempotencyConflict()
    return Known(earlier)


def _wait_s(invocation: Invocation, snapshot: Snapshot, position: int) -> float:
    """The tenant's own backlog over the pool's measured capacity: a lower bound while others wait too.

    (QLM's waiting-time estimator will stand in policies/waiting_time.py.)
    """
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
