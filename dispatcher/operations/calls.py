"""A call in its caller's process. The gate's command, the durable item and the worker's order are made from it."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.model.commands import Accept, Offer, parse_call_id
from dispatcher.model.invocation import Invocation
from dispatcher.model.requests import Request
from dispatcher.model.tenants import Tenant
from dispatcher.model.worker_protocol import WorkOrder
from dispatcher.operations.output_limits import OutputLimit
from dispatcher.operations.slo import due_at
from dispatcher.policies.planning.slo import SloClass
from dispatcher.policies.share_bounds import clamp_burst, clamp_cost, clamp_rate, clamp_weight
from dispatcher.policies.tiers import Tier
from dispatcher.ports import GateLink


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a tenant, ready for the gate. Times are Unix seconds, `cost` is in service units."""

    id: str
    """The call's id in the log and in answers."""
    tenant: Tenant
    request: Request
    limit: OutputLimit
    cost: float
    created_at: float
    deadline_at: float
    key: str = ""
    """The caller's idempotency key, or the Lambda request id. A call with a key is durable."""
    unread: frozenset[str] = frozenset()
    """Fields of the body that the model's workers do not read and that change nothing for them. Orders leave them
    out."""
    input_tokens: int = 0
    """The estimate of the prompt's length that is a part of `cost`."""
    slo_class: SloClass | None = None
    """None if the pool has no SLO classes."""
    due_at: float = 0.0
    """When the first token is due, if the class does not say it: a line of a batch has the time of its batch."""
    trace: str = ""
    """The traceparent of the call's first span; empty if this process traces nothing."""
    pool: str = "default"
    """The pool that has the call."""

    @property
    def is_durable(self) -> bool:
        return bool(self.key)

    @property
    def queue(self) -> tuple[str, str]:
        """The queue in which it waits: its tenant has one in each pool."""
        return self.pool, self.tenant.identity

    @property
    def is_deferred(self) -> bool:
        return self.slo_class is not None and self.slo_class.is_deferred


def accept_of(call: Call, link: GateLink, process: str) -> Accept:
    """Return the command that queues the call, or that makes `process` the holder of a durable one.

    A stored share outside the bounds (policies/share_bounds.py) is clamped here; `headgate doctor` names its tenant.
    """
    tenant, share = call.tenant, call.tenant.share
    is_own = parse_call_id(call.id)[0] == link.process
    return Accept(
        id=call.id,
        floor=link.floor if is_own else 0,
        process=process,
        tenant=tenant.identity,
        model=call.request.model,
        cost=clamp_cost(call.cost),
        deadline_at=call.deadline_at,
        durable=call.is_durable,
        app=call.request.app,
        interaction=call.request.interaction,
        version=tenant.version,
        weight=clamp_weight(share.weight),
        rate_per_s=clamp_rate(share.rate_per_s),
        burst=clamp_burst(share.burst),
        tier=tenant.tier.value,
        waiting_max=tenant.queue_items_max,
        slo_class="" if call.slo_class is None else call.slo_class.name,
        due_at=call.due_at or due_at(call.slo_class, call.created_at, call.deadline_at),
        deferred=call.is_deferred,
        input_tokens=call.input_tokens,
    )


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
        deadline_at=call.deadline_at,
        endpoint=call.request.endpoint,
        body=body,
        trace=call.trace,
    )


def order_of(call: Call, offer: Offer, trace: str = "") -> WorkOrder:
    """Return the call's order to the worker of an offer. The worker client signs the order.

    A deferred call is of the background tier in the engine, which may evict it: this is QLM's eviction.
    """
    request = call.request
    return WorkOrder(
        tenant=call.tenant.identity,
        invocation=call.id,
        attempt=offer.attempt,
        model=request.model,
        weight=clamp_weight(call.tenant.share.weight),
        tier=Tier.BACKGROUND if call.is_deferred else call.tenant.tier,
        deadline_at=call.deadline_at,
        endpoint=request.endpoint,
        body={name: value for name, value in request.body.items() if name not in call.unread},
        max_tokens=call.limit.max_tokens,
        expected_tokens=call.limit.expected_tokens,
        choices=request.choices,
        app=request.app,
        stage=request.stage,
        interaction=request.interaction,
        durable=call.is_durable,
        streamed=request.stream,
        deferred=call.is_deferred,
        cache_salt="",
        trace=trace,
    )


def span_attributes(call: Call) -> dict[str, str | int]:
    """Return what every span of the call names. `key` and `request.body` must not be among it."""
    return {
        "headgate.tenant": call.tenant.identity,
        "headgate.pool": call.pool,
        "headgate.model": call.request.model,
        "headgate.tier": call.tenant.tier.value,
        "headgate.invocation": call.id,
    }
