"""Submits a request: checks it, writes the item of a durable call, and sends the call to the gate.

The Following of a call (following.py) sends its first command. The item of a durable call is stored before that (rule
15 of docs/gate.md), so that a repetition of its key finds the call, and any process can finish it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dispatcher.fields.parse import check_capabilities, unread_fields
from dispatcher.model.answers import error_body
from dispatcher.model.commands import Offer, Outcome, Refused, Waiting
from dispatcher.model.errors import (
    AnsweredError,
    IdempotencyConflict,
    InvalidRequest,
    NoWorker,
    StoreUnavailable,
    UnknownModel,
)
from dispatcher.model.errors import Refused as RefusedError
from dispatcher.model.kept import Invocation, StoredAnswer
from dispatcher.model.prefixes import prefix_keys
from dispatcher.model.requests import Endpoint, Request
from dispatcher.model.tenants import Tenant
from dispatcher.operations.calls.call import (
    Call,
    OutputLimit,
    item_of,
    new_terms,
    output_limit,
    slo_class_of,
    span_attributes,
)
from dispatcher.operations.calls.followed import FollowedCall
from dispatcher.operations.calls.following import Following
from dispatcher.operations.calls.results import answer_without, latest_of_key, may_try_again, next_number, numbered
from dispatcher.operations.context import Context
from dispatcher.operations.limits import WaitingRequest, within_budget
from dispatcher.operations.pools import Pool
from dispatcher.operations.store_patience import in_time

_TENANT_WIDE = frozenset({"queue_full", "overloaded"})
"""The codes of refusals that apply to all calls of a tenant. (Throttling may apply to one application only.)"""


@dataclass(frozen=True, slots=True)
class NewCall:
    """A new call. The caller reads its events or its whole answer, and must call `leave` in every case."""

    following: Following
    outcome: Waiting | Offer

    @property
    def call(self) -> Call:
        return self.following.call

    def leave(self) -> None:
        self.following.leave(reader=True)


@dataclass(frozen=True, slots=True)
class Known:
    """A call that was submitted before under the same key. `following` is None if it has its answer. The caller must
    call `leave` in every case."""

    invocation: Invocation
    following: FollowedCall | None = None

    def leave(self) -> None:
        if self.following is not None:
            self.following.leave()


async def submit(
    context: Context,
    tenant: Tenant,
    request: Request,
    key: str = "",
    *,
    deadline_s: float = math.inf,
    due_at: float = 0.0,
    traceparent: str = "",
) -> NewCall | Known:
    """Send the request to the pool of its model. Return NewCall, or Known if its key was submitted before.

    `key`: the caller's idempotency key, or the Lambda request id. With a key the call is durable: its answer is stored.
    `due_at`: when the first token is due, in Unix seconds, also after the deadline; 0: as the SLO class says.
    `traceparent`: what the client sent, unchecked.

    If the earlier call with the key ended with a retryable error (a worker shed or preempted it, or its queue was
    full), the request is submitted again (results.py).

    An answer that is kept under the key is returned only while the tenant exists.

    Raises Unauthorized, UnknownModel, NoWorker, InvalidRequest (a field that the model's workers do not support; prompt
    or max_tokens beyond the model or the tenant's limit; an unknown or stricter SLO class), RequestTooLarge, Refused,
    IdempotencyConflict, StoreUnavailable.
    """
    pool = await context.pools.serving(request.model)
    submitted: NewCall | Known
    try:
        unnamed = await _build_call(context, pool, tenant, request, key, deadline_s, due_at)
    except (InvalidRequest, NoWorker, UnknownModel) as error:
        kept = await _find_answered_call(context, tenant, request, key)
        if kept is None and isinstance(error, NoWorker) and pool.waking is not None:
            raise await pool.waking.error_for(request.model) from None
        if kept is None:
            raise
        submitted = kept
    else:
        submitted = await _submit_call(context, pool, unnamed, traceparent)
    if isinstance(submitted, Known):
        try:
            await context.directory.check_not_deleted(tenant)
        except BaseException:
            submitted.leave()
            raise
    return submitted


async def _submit_call(context: Context, pool: Pool, unnamed: Call, traceparent: str) -> NewCall | Known:
    if not unnamed.is_durable:
        context.limits.full_queues.check(unnamed.queue, context.clock.monotonic())
    waiting = context.limits.waiting_request(*_size_of(unnamed))
    call_id = pool.link.new_id(unnamed.tenant.identity)
    span = context.tracing.begin("admitted", traceparent, span_attributes(unnamed, call_id))
    call, outcome = replace(unnamed, id=call_id, trace=span.traceparent), "error"
    try:
        submitted = await _send_call(context, call, waiting)
        outcome = "known" if isinstance(submitted, Known) else type(submitted.outcome).__name__.lower()
        return submitted
    except AnsweredError as error:
        outcome = error.code
        raise
    finally:
        span.end(outcome)


async def _send_call(context: Context, call: Call, waiting: WaitingRequest) -> NewCall | Known:
    if not call.is_durable:
        return await _await_admission(context, Following(context, call, waiting))
    try:
        return await _submit_durable(context, call, waiting)
    finally:
        if call.id not in context.durable_calls:
            waiting.release()
            context.link(call.pool).forget(call.id)


async def _submit_durable(context: Context, call: Call, waiting: WaitingRequest) -> NewCall | Known:
    context.limits.durable_refusals.check(call.queue, context.clock.monotonic())
    body = call.request.to_json()
    number, tried = 0, -1
    while number > tried:
        submitted = await _one_try(context, replace(call, key=numbered(call.key, number)), body, waiting)
        if not isinstance(submitted, Known) or not may_try_again(submitted.invocation):
            break
        number, tried = await next_number(context, call.tenant.identity, call.key), number
    return submitted


async def _one_try(context: Context, call: Call, body: str, waiting: WaitingRequest) -> NewCall | Known:
    async with context.key_lock(call.tenant.identity, call.key):
        item = await in_time(context.store.create(item_of(call, body)))
        if item.fingerprint != call.request.fingerprint():
            raise IdempotencyConflict()
        if item.id == call.id:
            following = Following(context, call, waiting)
        elif item.answer is not None:
            return Known(item)
        else:
            return await _join_call(context, call, item)
    return await _await_admission(context, following)


async def _await_admission(context: Context, following: Following) -> NewCall:
    """Wait for the gate's first answer. Raises the error if the gate refuses the call."""
    try:
        outcome = await following.first()
        if isinstance(outcome, Waiting | Offer):
            return NewCall(following, outcome)
        await following.ended.wait()
        error = following.error or StoreUnavailable()
        if following.call.is_durable:
            await _answer_refusal(context, following.call, error)
        elif isinstance(error, RefusedError) and error.code == "queue_full":
            context.limits.full_queues.note(following.call.queue, error, context.clock.monotonic())
        raise error
    except BaseException:
        following.leave(reader=True)
        raise


async def _join_call(context: Context, call: Call, item: Invocation) -> Known:
    """Follow a durable call that is not over. If this process already follows it, join; otherwise become its holder.

    The item is marked as shared first. So if the gate refuses the first submission of the call and accepts this one,
    the refusal is not stored as the call's answer.
    """
    shared = await in_time(context.store.share(item.id))
    item = shared or item
    while (running := context.durable_calls.get(item.id)) is not None:
        if running.join():
            return Known(item, running)
        await running.ended.wait()
        stored = await in_time(context.store.get(item.id))
        item = stored or item
    if item.answer is not None:
        return Known(item)
    again = call.rejoin(item, (await context.pools.holding(item)).name)
    following = Following(context, again, None, unread=True)
    try:
        outcome = await following.first()
        if isinstance(outcome, Waiting | Offer):
            return Known(item, following)
        await following.ended.wait()
        if isinstance(outcome, Refused):
            raise following.error or StoreUnavailable()
    except BaseException:
        following.leave()
        raise
    following.leave()
    return Known(await _ensure_answer(context, item, outcome))


async def _ensure_answer(context: Context, item: Invocation, outcome: Outcome) -> Invocation:
    """Return the item of a call that the gate does not hold any more, with its answer. Store one if it has none."""
    answer = answer_without(item, outcome, context.clock.now())
    return replace(item, answer=await in_time(context.store.answer(item.id, answer)) or answer)


async def _answer_refusal(context: Context, call: Call, error: AnsweredError) -> None:
    """Store the error of a call that ended before the gate accepted it, so that its key is free for a new try.

    The store keeps no error if the item is shared: a repetition of the key has sent the call to the gate too, and may
    be accepted. The next repetition asks the gate again.
    """
    if isinstance(error, RefusedError) and error.code in _TENANT_WIDE:
        context.limits.durable_refusals.note(call.queue, error, context.clock.monotonic())
    await in_time(
        context.store.refuse(call.id, StoredAnswer("failed", 0, 0, 0, error_body(error), context.clock.now()))
    )


async def _find_answered_call(context: Context, tenant: Tenant, request: Request, key: str) -> Known | None:
    """Return the key's call if its answer is stored. Today's workers and limits do not matter for a stored answer."""
    item = await latest_of_key(context, tenant.identity, key) if key else None
    if item is None or item.answer is None or may_try_again(item):
        return None
    if item.fingerprint != request.fingerprint():
        raise IdempotencyConflict()
    return Known(item)


async def _build_call(
    context: Context, pool: Pool, own: Tenant, request: Request, key: str, deadline_s: float, due_at: float
) -> Call:
    """Check the request and return its call, still without an id. Raises UnknownModel, NoWorker, InvalidRequest."""
    tenant = within_budget(context.settings, own)
    slo_class = slo_class_of(pool.slo_classes, tenant, request)
    if slo_class is not None:
        request = replace(request, slo_class=slo_class.name)
    worker = await pool.fleet.worker_for(tenant, request.model)
    capabilities = pool.fleet.capabilities(worker.model)
    check_capabilities(request, capabilities)
    limit = output_limit(request, tenant, context.settings.expected_tokens)
    is_generated = request.endpoint is not Endpoint.EMBEDDINGS
    if not is_generated <= limit.max_tokens * request.choices <= tenant.max_tokens_max:
        product = " times n" if request.choices > 1 else ""
        place = "for this key" if tenant is own else "through a front in Lambda"
        raise InvalidRequest(f"max_tokens{product} is at most {tenant.max_tokens_max} {place}.", "max_tokens")
    prompt_bytes = request.prompt_bytes()
    input_tokens = math.ceil(prompt_bytes / worker.bytes_per_token)
    longest_bytes = prompt_bytes if is_generated else request.longest_prompt_bytes()
    _check_context(request, limit, math.ceil(longest_bytes / worker.bytes_per_token), worker.context_tokens)
    now = context.clock.now()
    terms = new_terms(
        tenant,
        request,
        model=worker.model,
        cost=context.service(input_tokens, limit.likely_tokens * request.choices),
        input_tokens=input_tokens,
        times=(now, now + min(deadline_s, pool.deadline_s)),
        durable=bool(key),
        slo_class=slo_class,
        due=due_at,
        prefix=prefix_keys(request, tenant.sharing) if pool.names_prefixes else "",
    )
    unread = unread_fields(request, capabilities)
    return Call("", tenant, request, limit, terms, now, key, unread, slo_class, "", pool.name, prompt_bytes)


def _check_context(request: Request, limit: OutputLimit, input_tokens: int, context_tokens: int) -> None:
    """Raises InvalidRequest if prompt and limit do not fit into the context; 0: the context's length is unknown."""
    is_open = limit.expected_tokens is not None
    if not context_tokens or input_tokens + (1 if is_open else limit.max_tokens) <= context_tokens:
        return
    asks_for = f" and max_tokens asks for {limit.max_tokens}" if limit.max_tokens and not is_open else ""
    message = f"This model's context is {context_tokens} tokens; the prompt has about {input_tokens}{asks_for}."
    raise InvalidRequest(message, request.endpoint.prompt_field, "context_length_exceeded")


def _size_of(call: Call) -> tuple[str, int, int]:
    """Return what the call takes of the limits while it waits: its tenant, its bytes, and its likely tokens (one a
    byte, and those of the answer)."""
    likely_tokens = call.prompt_bytes + call.limit.likely_tokens * call.request.choices
    return call.tenant.identity, call.prompt_bytes, likely_tokens
