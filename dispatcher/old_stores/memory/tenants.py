"""Tenants and keys in memory."""

from __future__ import annotations

from dispatcher.model.old_outcomes import Written
from dispatcher.model.tenants import KeyRecord, Tenant


class MemoryTenants:
    def __init__(self) -> None:
        self._tenants: dict[str, Tenant] = {}
        self._keys: dict[str, KeyRecord] = {}

    def find_key(self, prefix: str, now: float) -> KeyRecord | None:
        key = self._keys.get(prefix)
        return key if key is not None and is_valid(key, now) else None

    def get(self, name: str) -> Tenant | None:
        return self._tenants.get(name)

    def put(self, tenant: Tenant, expected_version: int | None) -> Written:
        old = self._tenants.get(tenant.name)
        if expected_version is None and old is not None:
            return Written.EXISTS
        if expected_version is not None and (old is None or old.version != expected_version):
            return Written.CONFLICT
        self._tenants[tenant.name] = tenant
        return Written.DONE

    def all(self) -> list[Tenant]:
        return [self._tenants[name] for name in sorted(self._tenants)]

    def delete(self, name: str) -> None:
        self._tenants.pop(name, None)
        self._keys = {prefix: key for prefix, key in self._keys.items() if key.tenant != name}

    def put_key(self, key: KeyRecord) -> None:
        self._keys[key.prefix] = key

    def delete_key(self, prefix: str) -> None:
        self._keys.pop(prefix, None)

    def keys_of(self, tenant: str, now: float) -> list[KeyRecord]:
        mine = (key for key in self._keys.values() if key.tenant == tenant and is_valid(key, now))
        return sorted(mine, key=lambda key: key.prefix)


def is_valid(key: KeyRecord, now: float) -> bool:
    return key.expires_at is None or now < key.expires_at
