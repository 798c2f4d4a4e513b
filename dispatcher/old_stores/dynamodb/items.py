"""Items of the table, from and to the dataclasses of the house. Keys and indexes: layout.py."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from math import ceil
from typing import Any

from dispatcher.model.old_fleet import Lease, Pool, TenantQueue, WaitingQueue, Worker
from dispatcher.model.old_invocation import Invocation, Result, Slot, State
from dispatcher.model.tenants import KeyRecord, Tenant
from dispatcher.old_stores.dynamodb.attributes import Item
from dispatcher.old_stores.dynamodb.layout import EXPIRY, table_definition
from dispatcher.policies.clocks import Charge, Clocks, Share
from dispatcher.policies.tiers import Tier

__all__ = ["table_definition"]

# ── Tenants and keys ───────────────────────────────────────────────────────────────────────────────────────────────


def tenant_item(tenant: Tenant) -> Item:
    return {
        "name": tenant.name,
        "line": tenant.queue,
        "pool": tenant.pool,
        "weight": tenant.share.weight,
        "rate_per_s": tenant.share.rate_per_s,
        "burst": tenant.share.burst,
        "tier": tenant.tier.value,
        "models": tenant.models,
        "queue_items_max": tenant.queue_items_max,
        "max_tokens_max": tenant.max_tokens_max,
        "version": tenant.version,
    }


def to_tenant(item: Item) -> Tenant:
    models = item.get("models")
    return Tenant(
        name=item["name"],
        queue=item["line"],
        pool=item["pool"],
        share=Share(float(item["weight"]), float(item["rate_per_s"]), float(item["burst"])),
        tier=Tier(item["tier"]),
        models=None if models is None else tuple(models),
        queue_items_max=int(item["queue_items_max"]),
        max_tokens_max=int(item["max_tokens_max"]),
        version=int(item["version"]),
    )


def key_item(key: KeyRecord) -> Item:
    expiry = None if key.expires_at is None else ceil(key.expires_at)
    named = {"prefix": key.prefix, "digest": key.digest, "tenant": key.tenant}
    return {**named, "expires_at": key.expires_at, "created_at": key.created_at, EXPIRY: expiry}


def to_key(item: Item) -> KeyRecord:
    expires_at, created_at = _float_or_none(item, "expires_at"), _float_or_none(item, "created_at")
    return KeyRecord(item["prefix"], item["digest"], item["tenant"], expires_at, created_at or 0.0)


# ── Invocations ────────────────────────────────────────────────────────────────────────────────────────────────────


def invocation_item(invocation: Invocation, nonce: str) -> Item:
    """Return the item of a new invocation. `nonce` names the write, to recognise it if its reply is lost."""
    return {
        "tenant": invocation.tenant,
        "id": invocation.id,
        "line": invocation.queue,
        "pool": invocation.pool,
        "model": invocation.model,
        "fingerprint": invocation.fingerprint,
        "arrived_at": invocation.arrived_at,
        "deadline_at": invocation.deadline_at,
        "estimate": invocation.estimate,
        "config_version": invocation.config_version,
        "detached": invocation.detached,
        "body": invocation.body,
        **execution_attributes(invocation, nonce),
    }


def execution_attributes(invocation: Invocation, nonce: str) -> Item:
    """What moves when an invocation is dispatched or put back."""
    slot, charge = invocation.slot, invocation.charge
    return {
        "state": invocation.state.value,
        "attempt": invocation.attempt,
        "slot": None if slot is None else {"worker": slot.worker, "number": slot.number},
        "charge": None if charge is None else _charge_item(charge),
        "dispatched_at": invocation.dispatched_at,
        "nonce": nonce,
    }


def ending_attributes(ended: Invocation, nonce: str, retention_s: float) -> Item:
    """What is written at the end, the removal of the request included."""
    result = ended.result
    return {
        "state": ended.state.value,
        "ended_at": ended.ended_at,
        "result": None if result is None else {"status": result.status, "body": result.body},
        "input_tokens": ended.input_tokens,
        "output_tokens": ended.output_tokens,
        "served": ended.served,
        "body": None,
        "nonce": nonce,
        EXPIRY: ceil((ended.ended_at or 0.0) + retention_s),
    }


def to_invocation(item: Item) -> Invocation:
    slot, charge, result = item.get("slot"), item.get("charge"), item.get("result")
    return Invocation(
        tenant=item["tenant"],
        id=item["id"],
        queue=item["line"],
        pool=item["pool"],
        model=item["model"],
        fingerprint=item["fingerprint"],
        arrived_at=float(item["arrived_at"]),
        deadline_at=float(item["deadline_at"]),
        estimate=float(item["estimate"]),
        config_version=int(item["config_version"]),
        state=State(item["state"]),
        attempt=int(item["attempt"]),
        slot=None if slot is None else Slot(slot["worker"], int(slot["number"])),
        charge=None if charge is None else _to_charge(charge),
        dispatched_at=_float_or_none(item, "dispatched_at"),
        ended_at=_float_or_none(item, "ended_at"),
        detached=item["detached"],
        body=item.get("body"),
        result=None if result is None else Result(int(result["status"]), result["body"]),
        input_tokens=int(item.get("input_tokens", 0)),
        output_tokens=int(item.get("output_tokens", 0)),
        served=float(item.get("served", 0)),
    )


def _charge_item(charge: Charge) -> Item:
    share = {"rate_per_s": charge.rate_per_s, "weight": charge.weight}
    return {"cost": charge.cost, "in_profile": charge.in_profile, **share}


def _to_charge(item: Item) -> Charge:
    return Charge(float(item["cost"]), item["in_profile"], float(item["rate_per_s"]), float(item["weight"]))


def waiting_item(invocation: Invocation) -> Item:
    return {"tenant": invocation.tenant, "id": invocation.id, "deadline_at": invocation.deadline_at}


def is_expired(item: Mapping[str, Any], now: float) -> bool:
    """DynamoDB deletes expired items within days: every read filters, too."""
    return EXPIRY in item and item[EXPIRY] <= now


# ── Queues and pools ────────────────────────────────────────────────────────────────────────────────────────────────


def to_queue(name: str, item: Item | None) -> TenantQueue:
    number = (item or {}).get
    clocks = Clocks(float(number("tat", 0)), float(number("vft", 0)))
    return TenantQueue(name, clocks, int(number("waiting", 0)), float(number("reserved", 0)), float(number("spent", 0)))


def to_waiting_queue(item: Item) -> WaitingQueue:
    return WaitingQueue(item["line"], float(item["tat"]), float(item["vft"]))


def to_pool(name: str, item: Item | None) -> Pool:
    found = item or {}
    virtual_time, scale = float(found.get("virtual_time", 0)), float(found.get("rate_scale", 1))
    return Pool(name, virtual_time, found.get("backlogged", False), scale)


# ── Workers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def worker_item(worker: Worker) -> Item:
    """What a worker says of itself; `slots`, the leases by number, are the store's to say."""
    return {
        "id": worker.id,
        "pool": worker.pool,
        "url": worker.url,
        "model": worker.model,
        "slots_max": worker.slots,
        "seat": worker.seat,
        "context_tokens": worker.context_tokens,
        "bytes_per_token": worker.bytes_per_token,
        "alive_until": worker.alive_until,
        "draining": worker.draining,
        "kv_use": worker.kv_use,
        "queue_length": worker.queue_length,
        "service_per_s": worker.service_per_s,
        "live": sorted(worker.live),
    }


def to_worker(item: Item) -> Worker:
    return Worker(
        id=item["id"],
        pool=item["pool"],
        url=item["url"],
        model=item["model"],
        slots=int(item["slots_max"]),
        seat=int(item["seat"]),
        context_tokens=int(item["context_tokens"]),
        bytes_per_token=float(item["bytes_per_token"]),
        alive_until=float(item["alive_until"]),
        draining=item["draining"],
        kv_use=float(item["kv_use"]),
        queue_length=int(item["queue_length"]),
        service_per_s=float(item["service_per_s"]),
        live=frozenset(item["live"]),
        leases={int(number): _to_lease(lease) for number, lease in item["slots"].items()},
    )


def lease_item(lease: Lease) -> Item:
    """`execution` is what conditions compare: invocation and attempt in one."""
    return {
        "tenant": lease.tenant,
        "invocation": lease.invocation,
        "attempt": lease.attempt,
        "granted_at": lease.leased_at,
        "execution": lease.execution,
    }


def _to_lease(item: Item) -> Lease:
    return Lease(item["tenant"], item["invocation"], int(item["attempt"]), float(item["granted_at"]))


def _float_or_none(item: Item, name: str) -> float | None:
    value: Decimal | None = item.get(name)
    return None if value is None else float(value)
