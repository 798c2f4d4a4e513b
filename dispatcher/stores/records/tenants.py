"""Tenants, keys and audit records. A tenant has two items, in its own partition and in the list, written together.

A third item, the claim, says which identity has a name. A tenant that is older than identities has no claim: its own
item is under its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import ceil
from typing import Any

from dispatcher.model.tenants import AuditRecord, KeyRecord, Tenant, has_id, name_of
from dispatcher.policies.clocks import Share
from dispatcher.policies.tiers import Tier
from dispatcher.stores.layout import (
    OWN_KEY_PREFIX,
    OWN_KEYS_END,
    TENANTS,
    audit_key,
    audit_partition,
    key_key,
    listing_key,
    name_key,
    own_key_key,
    tenant_key,
    tenant_partition,
)
from dispatcher.stores.table import (
    EXPIRY,
    ConditionFailed,
    DeleteItem,
    IfAbsent,
    IfPresent,
    Item,
    ItemTable,
    Key,
    PutItem,
)

_DELETES_MAX = 49
"""The most keys in one transaction. A key has two items, an audit record is one, and a transaction has at most 100."""


class TenantRecords:
    """dispatcher.model.tenants.TenantStore."""

    def __init__(self, table: ItemTable) -> None:
        self._table = table

    async def find_key(self, prefix: str) -> KeyRecord | None:
        item = await self._table.get(key_key(prefix))
        return to_key(item) if item and self._is_valid(to_key(item)) else None

    async def get_tenant(self, identity: str) -> Tenant | None:
        item = await self._table.get(tenant_key(identity))
        return to_tenant(item) if item else None

    async def find_tenant(self, name: str) -> Tenant | None:
        claimed = None if has_id(name) else await self._claim(name)
        found = None if claimed is None else await self.get_tenant(claimed)
        return found or await self.get_tenant(name)

    async def put_tenant(
        self, tenant: Tenant, *, expected_version: int | None, audit: AuditRecord | None = None
    ) -> bool:
        """A version of headgate without identities knows no claims. So it could create a tenant of the same name beside
        this one: both are served, each with its own data, and only the whole identities name them.

        If two operators create the same tenant, or change the same version, the second gets an error, and no change is
        lost.
        """
        nonce = await self._table.nonce()
        condition: IfAbsent | IfPresent = IfAbsent()
        claims = []
        if expected_version is not None:
            condition = IfPresent({"version": expected_version})
        else:
            claimed = await self._claim(tenant.name)
            if await self.find_tenant(tenant.name) is not None:
                return False
            if has_id(tenant.identity):  # claim its name, unless another tenant is faster
                free = IfAbsent() if claimed is None else IfPresent({"identity": claimed})
                claims = [PutItem(claim_item(tenant), free)]
        own, listed = tenant_items(tenant, nonce)
        try:
            await self._table.transact([PutItem(own, condition), PutItem(listed), *claims, *_audit_puts(audit)], nonce)
        except ConditionFailed as refused:
            return (refused.old[0] or {}).get("nonce") == nonce  # an earlier try was applied, its reply was lost
        return True

    async def list_tenants(self) -> Sequence[Tenant]:
        return [to_tenant(item) for item in await self._table.range(TENANTS)]

    async def delete_tenant(self, identity: str, *, audit: AuditRecord | None = None) -> None:
        """Delete the tenant, its keys first, so that a tenant that is only partly deleted has no valid key.

        The audit record is written with the last step. A deletion that breaks off before it can be repeated.
        """
        prefixes = [key.prefix for key in await self._all_keys_of(identity)]
        for start in range(0, len(prefixes), _DELETES_MAX):
            chosen = prefixes[start : start + _DELETES_MAX]
            await self._delete([key for prefix in chosen for key in (key_key(prefix), own_key_key(identity, prefix))])
        name = name_of(identity)
        claim = [name_key(name)] if has_id(identity) and await self._claim(name) == identity else []
        await self._delete([listing_key(identity), tenant_key(identity), *claim], audit)

    async def put_key(self, key: KeyRecord, *, audit: AuditRecord | None = None) -> None:
        puts = [PutItem(item) for item in key_items(key)]
        await self._table.transact([*puts, *_audit_puts(audit)], await self._table.nonce())

    async def delete_key(self, prefix: str, *, audit: AuditRecord | None = None) -> None:
        item = await self._table.get(key_key(prefix))
        if item is not None:
            await self._delete([key_key(prefix), own_key_key(item["tenant"], prefix)], audit)

    async def keys_of(self, identity: str) -> Sequence[KeyRecord]:
        return [key for key in await self._all_keys_of(identity) if self._is_valid(key)]

    async def audit_records(self, month: str) -> Sequence[AuditRecord]:
        return [_audit_record(item) for item in await self._table.range(audit_partition(month))]

    async def _claim(self, name: str) -> str | None:
        """Return the identity that has claimed the name. Its tenant may be gone, if an older version deleted it."""
        item = await self._table.get(name_key(name))
        return item["identity"] if item else None

    async def _all_keys_of(self, identity: str) -> list[KeyRecord]:
        items = await self._table.range(tenant_partition(identity), OWN_KEY_PREFIX, OWN_KEYS_END)
        return [to_key(item) for item in items]

    async def _delete(self, keys: Sequence[Key], audit: AuditRecord | None = None) -> None:
        deletes = [DeleteItem(key) for key in keys]
        await self._table.transact([*deletes, *_audit_puts(audit)], await self._table.nonce())

    def _is_valid(self, key: KeyRecord) -> bool:
        return key.expires_at is None or self._table.clock.now() < key.expires_at


def tenant_items(tenant: Tenant, nonce: str) -> tuple[Item, Item]:
    """Return the tenant's own item, with the name of its write, and its copy in the list."""
    record = tenant_record(tenant)
    return {**tenant_key(tenant.identity), **record, "nonce": nonce}, {**listing_key(tenant.identity), **record}


def claim_item(tenant: Tenant) -> Item:
    return {**name_key(tenant.name), "identity": tenant.identity}


def tenant_record(tenant: Tenant) -> Item:
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
        **({"adapters": list(tenant.adapters)} if tenant.adapters else {}),
        **({"prefix_group": tenant.prefix_group} if tenant.prefix_group else {}),
    }


def to_tenant(record: Mapping[str, Any]) -> Tenant:
    models = record.get("models")
    return Tenant(
        identity=record["name"],
        share=Share(float(record["weight"]), float(record["rate_per_s"]), float(record["burst"])),
        tier=Tier(record["tier"]),
        models=None if models is None else tuple(models),
        adapters=tuple(record.get("adapters") or ()),
        queue_items_max=int(record["queue_items_max"]),
        max_tokens_max=int(record["max_tokens_max"]),
        version=int(record["version"]),
        slo_class=record.get("slo_class") or "",
        prefix_group=record.get("prefix_group") or "",
    )


def key_items(key: KeyRecord) -> list[Item]:
    """Return the key's item, by which it is found, and its tenant's own copy."""
    record = {**asdict(key), EXPIRY: None if key.expires_at is None else ceil(key.expires_at)}
    return [{**place, **record} for place in (key_key(key.prefix), own_key_key(key.tenant, key.prefix))]


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


def _audit_item(audit: AuditRecord) -> Item:
    """Return the item. Items sort in the order of their times, to the millisecond, and then of their ids.

    `before` and `after` are JSON: their fields may be any that a tenant ever had.
    """
    key = audit_key(audit.month, f"{int(audit.at * 1000):014d}#{audit.id}")
    return {**key, **audit._asdict(), "before": _json(audit.before), "after": _json(audit.after)}


def _audit_puts(audit: AuditRecord | None) -> list[PutItem]:
    """Return the part of a transaction that writes the record. A repetition writes the same item again."""
    return [] if audit is None else [PutItem(_audit_item(audit))]


def _audit_record(record: Mapping[str, Any]) -> AuditRecord:
    fields = {name: record[name] for name in ("id", "actor", "action", "tenant")}
    before, after = record.get("before"), record.get("after")
    return AuditRecord(
        **fields,
        at=float(record["at"]),
        before=None if before is None else json.loads(before),
        after=None if after is None else json.loads(after),
    )


def _json(fields: Mapping[str, Any] | None) -> str | None:
    return None if fields is None else json.dumps(fields)
