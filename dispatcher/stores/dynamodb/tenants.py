"""Tenants and keys in DynamoDB. A tenant has two items, in its own partition and in the list, written together.

A third item, the claim, says which identity has a name. A tenant that is older than identities has no claim: its own
item is under its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from dispatcher.model.audit import AuditRecord
from dispatcher.model.tenants import KeyRecord, Tenant, has_id, name_of
from dispatcher.stores.dynamodb.attributes import Item, encode, encode_item
from dispatcher.stores.dynamodb.layout import (
    EXPIRY,
    OWN_KEY_PREFIX,
    TENANTS,
    Key,
    audit_key,
    audit_partition,
    key_key,
    listing_key,
    name_key,
    own_key_key,
    tenant_key,
    tenant_partition,
)
from dispatcher.stores.dynamodb.reads import Reads
from dispatcher.stores.dynamodb.requests import ConditionFailed, Requests
from dispatcher.stores.records import (
    audit_record,
    is_valid,
    key_record,
    tenant_record,
    to_audit,
    to_key,
    to_tenant,
    when,
)

DELETES_MAX = 49
"""The most keys in one transaction. A key has two items, an audit record is one, and a transaction has at most 100."""


class DynamoTenants:
    """dispatcher.model.tenant_store.TenantStore."""

    def __init__(self, requests: Requests, reads: Reads) -> None:
        self._requests, self._reads = requests, reads

    async def find_key(self, prefix: str) -> KeyRecord | None:
        item = await self._reads.item(key_key(prefix))
        return to_key(item) if item and self._is_valid(to_key(item)) else None

    async def get_tenant(self, identity: str) -> Tenant | None:
        item = await self._reads.item(tenant_key(identity))
        return to_tenant(item) if item else None

    async def find_tenant(self, name: str) -> Tenant | None:
        claimed = None if has_id(name) else await self._claim(name)
        found = None if claimed is None else await self.get_tenant(claimed)
        return found or await self.get_tenant(name)

    async def put_tenant(
        self, tenant: Tenant, *, expected_version: int | None, audit: AuditRecord | None = None
    ) -> bool:
        """A version of headgate without identities knows no claims. So it could create a tenant of the same name beside
        this one: both are served, each with its own data, and only the whole identities name them."""
        nonce = self._requests.nonce()
        claims = []
        if expected_version is None:
            claimed = await self._claim(tenant.name)
            if await self.find_tenant(tenant.name) is not None:
                return False
            claims = self._claiming(tenant, claimed) if has_id(tenant.identity) else []
        record = tenant_record(tenant)
        own = self._put_of({**tenant_key(tenant.identity), **record, "nonce": nonce}, _is_version(expected_version))
        listed = self._put_of({**listing_key(tenant.identity), **record})
        puts = [own, listed, *claims, *self._audit_puts(audit)]
        try:
            await self._requests.transact(puts, nonce)
        except ConditionFailed as refused:
            return (refused.old[0] or {}).get("nonce") == nonce  # an earlier try was applied, its reply was lost
        return True

    async def list_tenants(self) -> Sequence[Tenant]:
        return [to_tenant(item) for item in await self._reads.partition(TENANTS)]

    async def _claim(self, name: str) -> str | None:
        """Return the identity that has claimed the name. Its tenant may be gone, if an older version deleted it."""
        item = await self._reads.item(name_key(name))
        return item["identity"] if item else None

    def _claiming(self, tenant: Tenant, claimed: str | None) -> list[dict[str, Any]]:
        """Return the part of a transaction that claims the tenant's name, unless another tenant is faster."""
        condition: dict[str, Any] = {"ConditionExpression": "attribute_not_exists(pk)"}
        if claimed is not None:
            condition = {
                "ConditionExpression": "#identity = :claimed",
                "ExpressionAttributeNames": {"#identity": "identity"},
                "ExpressionAttributeValues": {":claimed": encode(claimed)},
            }
        return [self._put_of({**name_key(tenant.name), "identity": tenant.identity}, condition)]

    async def delete_tenant(self, identity: str, *, audit: AuditRecord | None = None) -> None:
        """Delete the tenant, its keys first, so that a tenant that is only partly deleted has no valid key.

        The audit record is written with the last step. A deletion that breaks off before it can be repeated.
        """
        prefixes = [key.prefix for key in await self._all_keys_of(identity)]
        for start in range(0, len(prefixes), DELETES_MAX):
            chosen = prefixes[start : start + DELETES_MAX]
            await self._delete([key for prefix in chosen for key in (key_key(prefix), own_key_key(identity, prefix))])
        name = name_of(identity)
        claim = [name_key(name)] if has_id(identity) and await self._claim(name) == identity else []
        await self._delete([listing_key(identity), tenant_key(identity), *claim], audit)

    async def put_key(self, key: KeyRecord, *, audit: AuditRecord | None = None) -> None:
        record = {**key_record(key), EXPIRY: None if key.expires_at is None else ceil(key.expires_at)}
        places = (key_key(key.prefix), own_key_key(key.tenant, key.prefix))
        puts = [self._put_of({**place, **record}) for place in places]
        await self._requests.transact([*puts, *self._audit_puts(audit)], self._requests.nonce())

    async def delete_key(self, prefix: str, *, audit: AuditRecord | None = None) -> None:
        item = await self._reads.item(key_key(prefix))
        if item is not None:
            await self._delete([key_key(prefix), own_key_key(item["tenant"], prefix)], audit)

    async def keys_of(self, identity: str) -> Sequence[KeyRecord]:
        return [key for key in await self._all_keys_of(identity) if self._is_valid(key)]

    async def _all_keys_of(self, identity: str) -> list[KeyRecord]:
        items = await self._reads.partition(tenant_partition(identity), OWN_KEY_PREFIX)
        return [to_key(item) for item in items]

    async def audit_records(self, month: str) -> Sequence[AuditRecord]:
        return [to_audit(item) for item in await self._reads.partition(audit_partition(month))]

    async def _delete(self, keys: Sequence[Key], audit: AuditRecord | None = None) -> None:
        deletes = [{"Delete": {"TableName": self._requests.table, "Key": encode_item(key)}} for key in keys]
        await self._requests.transact([*deletes, *self._audit_puts(audit)], self._requests.nonce())

    def _audit_puts(self, audit: AuditRecord | None) -> list[dict[str, Any]]:
        """Return the part of a transaction that writes the record. A repetition writes the same item again."""
        if audit is None:
            return []
        return [self._put_of({**audit_key(audit.month, when(audit)), **audit_record(audit)})]

    def _put_of(self, item: Item, condition: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the part of a transaction that writes the item."""
        return {"Put": {"TableName": self._requests.table, "Item": encode_item(item), **(condition or {})}}

    def _is_valid(self, key: KeyRecord) -> bool:
        return is_valid(key, self._requests.clock.now())


def _is_version(expected: int | None) -> dict[str, Any]:
    """Return the condition that the tenant does not exist (`expected` None) or has this version.

    If two operators create the same tenant, or change the same version, the second gets an error, and no change is
    lost.
    """
    refusal = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    if expected is None:
        return {**refusal, "ConditionExpression": "attribute_not_exists(pk)"}
    names, values = {"#version": "version"}, {":version": encode(expected)}
    condition = {"ConditionExpression": "#version = :version"}
    return {**refusal, **condition, "ExpressionAttributeNames": names, "ExpressionAttributeValues": values}
