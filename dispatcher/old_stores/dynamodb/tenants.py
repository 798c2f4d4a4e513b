"""Tenants and keys in DynamoDB. A tenant lies twice, in its own partition and in the list: written together."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.model.old_outcomes import Written
from dispatcher.model.tenants import KeyRecord, Tenant
from dispatcher.old_stores.dynamodb.expressions import Statement
from dispatcher.old_stores.dynamodb.items import key_item, tenant_item, to_key, to_tenant
from dispatcher.old_stores.dynamodb.layout import (
    OWN_KEY_PREFIX,
    PARTITION,
    TENANTS,
    Key,
    key_key,
    listing_key,
    own_key_key,
    tenant_key,
)
from dispatcher.old_stores.dynamodb.reads import Reads
from dispatcher.old_stores.dynamodb.requests import ConditionFailed, Requests

DELETES_MAX = 50
"""Most keys in one transaction: two items each, 100 items at most."""


class DynamoTenants:
    def __init__(self, requests: Requests, reads: Reads) -> None:
        self._requests = requests
        self._reads = reads

    async def find_key(self, prefix: str) -> KeyRecord | None:
        item = await self._reads.item(key_key(prefix))
        return to_key(item) if item and self._is_valid(to_key(item)) else None

    async def get(self, name: str) -> Tenant | None:
        item = await self._reads.item(tenant_key(name))
        return to_tenant(item) if item else None

    async def put(self, tenant: Tenant, expected_version: int | None) -> Written:
        nonce = self._requests.nonce()
        stated = Statement(tenant_key(tenant.name))
        if expected_version is None:
            # Two operators create the same tenant: one of them gets an error, and no configuration is lost.
            stated.require(stated.absent(PARTITION))
        else:
            # A version read, changed elsewhere, then written back would undo the other change.
            stated.require(stated.compares("version", "=", expected_version))
        table = self._requests.table
        listed = Statement(listing_key(tenant.name)).as_put(table, tenant_item(tenant))
        own = stated.as_put(table, {**tenant_item(tenant), "nonce": nonce})
        try:
            await self._requests.transact([{"Put": own}, {"Put": listed}], nonce)
        except ConditionFailed as refused:
            if (refused.old[0] or {}).get("nonce") == nonce:
                return Written.DONE
            return Written.EXISTS if expected_version is None else Written.CONFLICT
        return Written.DONE

    async def all(self) -> Sequence[Tenant]:
        return [to_tenant(item) for item in await self._reads.partition(TENANTS)]

    async def delete(self, name: str) -> None:
        """Keys first: a tenant half deleted has none that opens anything."""
        prefixes = [key.prefix for key in await self._all_keys_of(name)]
        for start in range(0, len(prefixes), DELETES_MAX):
            chosen = prefixes[start : start + DELETES_MAX]
            await self._delete([key for prefix in chosen for key in (key_key(prefix), own_key_key(name, prefix))])
        await self._delete([listing_key(name), tenant_key(name)])

    async def put_key(self, key: KeyRecord) -> None:
        table = self._requests.table
        keys = (key_key(key.prefix), own_key_key(key.tenant, key.prefix))
        puts = [{"Put": Statement(place).as_put(table, key_item(key))} for place in keys]
        await self._requests.transact(puts, self._requests.nonce())

    async def delete_key(self, prefix: str) -> None:
        item = await self._reads.item(key_key(prefix))
        if item is not None:
            await self._delete([key_key(prefix), own_key_key(item["tenant"], prefix)])

    async def keys_of(self, tenant: str) -> Sequence[KeyRecord]:
        return [key for key in await self._all_keys_of(tenant) if self._is_valid(key)]

    async def _all_keys_of(self, tenant: str) -> list[KeyRecord]:
        items = await self._reads.partition(tenant_key(tenant)[PARTITION], OWN_KEY_PREFIX)
        return [to_key(item) for item in items]

    async def _delete(self, keys: Sequence[Key]) -> None:
        table = self._requests.table
        deletes = [{"Delete": Statement(key).as_delete(table)} for key in keys]
        await self._requests.transact(deletes, self._requests.nonce())

    def _is_valid(self, key: KeyRecord) -> bool:
        return key.expires_at is None or self._requests.clock.now() < key.expires_at
