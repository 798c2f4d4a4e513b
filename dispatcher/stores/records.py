"""Converts the model's records to the flat dictionaries that a row or an item stores, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dispatcher.model.audit import AuditRecord
from dispatcher.model.invocation import Invocation, StoredAnswer
from dispatcher.model.requests import Endpoint
from dispatcher.model.tenants import KeyRecord, Tenant
from dispatcher.model.usage import TenantRow, UsageRow
from dispatcher.policies.clocks import Share
from dispatcher.policies.tiers import Tier

Record = dict[str, Any]


def tenant_record(tenant: Tenant) -> Record:
    share = {"weight": tenant.share.weight, "rate_per_s": tenant.share.rate_per_s, "burst": tenant.share.burst}
    return {
        "name": tenant.identity,  # an older version takes this for the tenant's name, and serves the same identity
        **share,
        "tier": tenant.tier.value,
        "models": None if tenant.models is None else list(tenant.models),
        "queue_items_max": tenant.queue_items_max,
        "max_tokens_max": tenant.max_tokens_max,
        "version": tenant.version,
        "slo_class": tenant.slo_class,
    }


def to_tenant(record: Mapping[str, Any]) -> Tenant:
    models = record.get("models")
    return Tenant(
        identity=record["name"],
        share=Share(float(record["weight"]), float(record["rate_per_s"]), float(record["burst"])),
        tier=Tier(record["tier"]),
        models=None if models is None else tuple(models),
        queue_items_max=int(record["queue_items_max"]),
        max_tokens_max=int(record["max_tokens_max"]),
        version=int(record["version"]),
        slo_class=record.get("slo_class") or "",
    )


def key_record(key: KeyRecord) -> Record:
    return asdict(key)


def to_key(record: Mapping[str, Any]) -> KeyRecord:
    expires_at = record.get("expires_at")
    return KeyRecord(
        prefix=record["prefix"],
        digest=record["digest"],
        tenant=record["tenant"],
        expires_at=None if expires_at is None else float(expires_at),
        created_at=float(record["created_at"]),
        slo_class=record.get("slo_class") or "",
    )


def is_valid(key: KeyRecord, now: float) -> bool:
    """Return whether the key has not expired at `now`."""
    return key.expires_at is None or now < key.expires_at


def audit_record(audit: AuditRecord) -> Record:
    """Return the record. `before` and `after` are JSON: their fields may be any that a tenant ever had."""
    return {**audit._asdict(), "before": _json(audit.before), "after": _json(audit.after)}


def to_audit(record: Mapping[str, Any]) -> AuditRecord:
    fields = {name: record[name] for name in ("id", "actor", "action", "tenant")}
    before, after = record.get("before"), record.get("after")
    return AuditRecord(
        **fields,
        at=float(record["at"]),
        before=None if before is None else json.loads(before),
        after=None if after is None else json.loads(after),
    )


def when(audit: AuditRecord) -> str:
    """Return a text by which records sort in the order of their times, to the millisecond, and then by their ids."""
    return f"{int(audit.at * 1000):014d}#{audit.id}"


def _json(fields: Mapping[str, Any] | None) -> str | None:
    return None if fields is None else json.dumps(fields)


def invocation_record(invocation: Invocation) -> Record:
    """Return the fields of a new invocation, without `answer` and `shared`, which it does not have yet."""
    fields = {name: value for name, value in asdict(invocation).items() if name not in ("answer", "shared")}
    return {**fields, "endpoint": invocation.endpoint.value}


def to_invocation(record: Mapping[str, Any]) -> Invocation:
    answer = record.get("answer")
    return Invocation(
        id=record["id"],
        tenant=record["tenant"],
        key=record["key"],
        pool=record["pool"],
        model=record["model"],
        fingerprint=record["fingerprint"],
        created_at=float(record["created_at"]),
        deadline_at=float(record["deadline_at"]),
        endpoint=_endpoint(record),
        body=record.get("body"),
        answer=None if answer is None else to_answer(answer),
        shared=bool(record.get("shared", False)),
        trace=record.get("trace") or "",
    )


def _endpoint(record: Mapping[str, Any]) -> Endpoint:
    """Return the endpoint. (An older version stored whether it is a chat.)"""
    if "endpoint" in record:
        return Endpoint(record["endpoint"])
    return Endpoint.CHAT if record["chat"] else Endpoint.COMPLETION


def answer_record(answer: StoredAnswer) -> Record:
    return asdict(answer)


def to_answer(record: Mapping[str, Any]) -> StoredAnswer:
    return StoredAnswer(
        outcome=record["outcome"],
        attempt=int(record["attempt"]),
        input_tokens=int(record["input_tokens"]),
        output_tokens=int(record["output_tokens"]),
        body=record["body"],
        ended_at=float(record["ended_at"]),
    )


def usage_record(row: UsageRow) -> Record:
    return asdict(row)


def to_usage(record: Mapping[str, Any]) -> UsageRow:
    return UsageRow(
        tenant=record["tenant"],
        app=record["app"],
        hour=int(record["hour"]),
        requests=int(record["requests"]),
        input_tokens=int(record["input_tokens"]),
        output_tokens=int(record["output_tokens"]),
        service=float(record["service"]),
        position=int(record["position"]),
        cached_tokens=int(record.get("cached_tokens", 0)),  # older rows have none
    )


def tenant_row_record(row: TenantRow) -> Record:
    return {**asdict(row), "clocks": list(row.clocks)}


def to_tenant_row(record: Mapping[str, Any]) -> TenantRow:
    credit = record.get("credit")
    return TenantRow(
        tenant=record["tenant"],
        version=int(record["version"]),
        tier=record["tier"],
        weight=float(record["weight"]),
        rate_per_s=float(record["rate_per_s"]),
        burst=float(record["burst"]),
        waiting=int(record["waiting"]),
        running=int(record["running"]),
        reserved=float(record["reserved"]),
        spent=float(record["spent"]),
        clocks=tuple(float(clock) for clock in record["clocks"]),
        credit=None if credit is None else float(credit),
        at=float(record["at"]),
        position=int(record["position"]),
    )
