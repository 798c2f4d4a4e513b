"""A call in its caller's process: its terms, its SLO class, and how long its answer may get.

The gate's command, the durable item and the worker's order are made from it. The SLO class says when its first token is
due (policies/planning/slo.py).

A chat without `max_tokens` ends when the model ends it. Its limit is what the tenant may have, and the engine shortens
the limit to what fits into the context beside the prompt. The gate does not know such an answer's length. So its cost
is estimated with `expected_tokens`, and corrected to the true length at the end, as every cost is.

A completion without `max_tokens` gets `expected_tokens`: a bare text often has no natural end, and OpenAI's own default
for it is only 16.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from dispatcher.model.call import CallTerms, TenantConfig
from dispatcher.model.commands import Accept, Offer
from dispatcher.model.errors import InvalidRequest
from dispatcher.model.kept import Invocation
from dispatcher.model.requests import Endpoint, Request
from dispatcher.model.tenants import Tenant
from dispatcher.model.worker_protocol import WorkOrder
from dispatcher.policies.planning.slo import SloClass, SloClasses
from dispatcher.policies.share_bounds import clamp_burst, clamp_cost, clamp_rate, clamp_weight
from dispatcher.policies.tiers import Tier


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a tenant, ready for the gate. Times are Unix seconds."""

    id: str
    """The call's id in the log and in answers."""
    tenant: Tenant
    request: Request
    limit: OutputLimit
    terms: CallTerms
    created_at: float
    key: str = ""
    """The caller's idempotency key, or the Lambda request id. A call with a key is durable."""
    unread: frozenset[str] = frozenset()
    """Fields of the body that the model's workers do not read and that change nothing for them. Orders leave them
    out."""
    slo_class: SloClass | None = None
    """None if the pool has no SLO classes."""
    trace: str = ""
    """The traceparent of the call's first span; empty if this process traces nothing."""
    pool: str = "default"
    """The pool that has the call."""
    prompt_bytes: int = 0
    """What its prompt takes of the limits while it waits (Request.prompt_bytes); 0 for a call that takes nothing."""

    @property
    def is_durable(self) -> bool:
        return bool(self.key)

    @property
    def queue(self) -> tuple[str, str]:
        """The queue in which it waits: its tenant has one in each pool."""
        return self.pool, self.tenant.identity

    def rejoin(self, item: Invocation, pool: str) -> Call:
        """Return the call as another process has stored it under the same key."""
        terms, times = self.terms, (item.created_at, item.deadline_at)
        if terms.due_at == due_at(self.slo_class, self.created_at, terms.deadline_at):
            terms = terms._replace(due_at=due_at(self.slo_class, *times))
        terms = terms._replace(deadline_at=item.deadline_at)
        return replace(self, id=item.id, created_at=item.created_at, terms=terms, trace=item.trace, pool=pool)


def new_terms(
    tenant: Tenant,
    request: Request,
    *,
    model: str,
    cost: float,
    input_tokens: int,
    times: tuple[float, float],
    durable: bool,
    slo_class: SloClass | None,
    due: float = 0.0,
    prefix: str = "",
) -> CallTerms:
    """Return the terms of a request. `model`: the one that it names, or that of the adapter that it names. `times`:
    when it arrived, and its deadline. `due`: when its first token is due, if its class does not say it: a line of a
    batch has the time of its batch."""
    return CallTerms(
        tenant=tenant.identity,
        model=model,
        cost=clamp_cost(cost),
        deadline_at=times[1],
        durable=durable,
        app=request.app,
        interaction=request.interaction,
        slo_class="" if slo_class is None else slo_class.name,
        due_at=due or due_at(slo_class, *times),
        deferred=slo_class is not None and slo_class.is_deferred,
        input_tokens=input_tokens,
        prefix=prefix,
    )


def accept_of(call: Call, process: str) -> Accept:
    """Return the command that queues the call, or that makes `process` the holder of a durable one.

    A stored share outside the bounds (policies/share_bounds.py) is clamped here; `headgate doctor` names its tenant.
    """
    tenant, share = call.tenant, call.tenant.share
    config = TenantConfig(
        version=tenant.version,
        weight=clamp_weight(share.weight),
        rate_per_s=clamp_rate(share.rate_per_s),
        burst=clamp_burst(share.burst),
        tier=tenant.tier.value,
        waiting_max=tenant.queue_items_max,
    )
    return Accept(call.id, 0, process, call.terms, config)  # the link adds its floor


def item_of(call: Call, body: str) -> Invocation:
    """Return the item that makes the call durable."""
    return Invocation(
        id=call.id,
        tenant=call.tenant.identity,
        key=call.key,
        pool=call.pool,
        model=call.request.model,
        fingerprint=call.request.fingerprint(),
        created_at=call.created_at,
        deadline_at=call.terms.deadline_at,
        endpoint=call.request.endpoint,
        body=body,
        trace=call.trace,
    )


def order_of(call: Call, offer: Offer, trace: str = "") -> WorkOrder:
    """Return the call's order to the worker of an offer. The worker client signs the order.

    A deferred call is of the background tier in the engine, which may evict it: this is QLM's eviction. The order's
    model is what the tenant names: the log has the model, and the worker needs the adapter.
    """
    request, unread, terms = call.request, call.unread, call.terms
    return WorkOrder(
        terms if terms.model == request.model else terms._replace(model=request.model),
        call.id,
        offer.attempt,
        body={name: value for name, value in request.body.items() if name not in unread} if unread else request.body,
        max_tokens=call.limit.max_tokens,
        expected_tokens=call.limit.expected_tokens,
        endpoint=request.endpoint,
        choices=request.choices,
        weight=clamp_weight(call.tenant.share.weight),
        tier=Tier.BACKGROUND if call.terms.deferred else call.tenant.tier,
        stage=request.stage,
        streamed=request.stream,
        prefix_group=call.tenant.prefix_group,
        trace=trace,
    )


def span_attributes(call: Call, call_id: str = "") -> dict[str, str | int]:
    """Return what every span of the call names. `key` and `request.body` must not be among it. `call_id`: of a call
    that has no id yet."""
    return {
        "headgate.tenant": call.tenant.identity,
        "headgate.pool": call.pool,
        "headgate.model": call.request.model,
        "headgate.tier": call.tenant.tier.value,
        "headgate.invocation": call_id or call.id,
    }


class OutputLimit(NamedTuple):
    """The limit of an output, in tokens of each choice. `expected_tokens`: None if the client set the limit."""

    max_tokens: int
    expected_tokens: int | None = None

    @property
    def likely_tokens(self) -> int:
        """The tokens that the estimate of the cost counts."""
        return self.max_tokens if self.expected_tokens is None else self.expected_tokens


def output_limit(request: Request, tenant: Tenant, expected_tokens: int) -> OutputLimit:
    """Return the limit of a request: 0 for embeddings, which have no output.

    The limit is 0 too if the tenant's limit has no token for each of the request's choices.
    """
    if request.endpoint is Endpoint.EMBEDDINGS:
        return OutputLimit(0)
    if request.max_tokens is not None:
        return OutputLimit(request.max_tokens)
    most = tenant.max_tokens_max // request.choices
    expected = min(expected_tokens, most)
    return OutputLimit(expected) if request.endpoint is Endpoint.COMPLETION else OutputLimit(most, expected)


_SLO_FIELD = "metadata.headgate_slo_class"


def slo_class_of(classes: SloClasses | None, tenant: Tenant, request: Request) -> SloClass | None:
    """Return the class of a request; None if the pool has no classes.

    A tenant or key with a class that is not configured any more has the usual one. Raises InvalidRequest if the request
    names an unknown class, or a stricter one than that of its tenant or key.
    """
    if classes is None:
        if request.slo_class:
            raise InvalidRequest("This service has no SLO classes: send the request without one.", _SLO_FIELD)
        return None
    own = tenant.slo_class if tenant.slo_class in classes else classes.usual.name
    try:
        return classes.resolve(own, request.slo_class or None)
    except ValueError as error:
        raise InvalidRequest(f"{str(error)[:1].upper()}{str(error)[1:]}.", _SLO_FIELD) from None


def stored_class(classes: SloClasses | None, request: Request) -> SloClass | None:
    """Return the class of a request that was accepted earlier; None if it had none, or its class is not configured."""
    return classes.named(request.slo_class) if classes is not None and request.slo_class in classes else None


def due_at(slo_class: SloClass | None, created_at: float, deadline_at: float) -> float:
    """Return when the first token is due, in Unix seconds; 0 without a class. It is never due after the deadline."""
    return 0.0 if slo_class is None else min(slo_class.due_at(created_at), deadline_at)
