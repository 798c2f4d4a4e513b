"""Tenants and keys in memory."""

from __future__ import annotations

from dispatcher.model.audit import AuditRecord
from dispatcher.model.tenants import KeyRecord, Tenant, has_id
from dispatcher.stores.records import is_valid, when


class MemoryTenants:
    def __init__(self) -> None:
        self._tenants: dict[str, Tenant] = {}
        self._keys: dict[str, KeyRecord] = {}
        self._audit: list[AuditRecord] = []

    def find_key(self, prefix: str, now: float) -> KeyRecord | None:
        key = self._keys.get(prefix)
        return key if key is not None and is_valid(key, now) else None

    def get(self, identity: str) -> Tenant | None:
        return self._tenants.get(identity)

    def find(self, name: str) -> Tenant | None:
        if has_id(name):
            return self.get(name)
        named = [tenant for tenant in self._tenants.values() if tenant.name == name]
        return max(named, key=lambda tenant: has_id(tenant.identity), default=None)

    def put(self, tenant: Tenant, expected_version: int | None, audit: AuditRecord | None = None) -> bool:
        old = self.find(tenant.name) if expected_version is None else self.get(tenant.identity)
        if (None if old is None else old.version) != expected_version:
            return False
        self._tenants[tenant.identity] = tenant
        self._note(audit)
        return True

    def all(self) -> list[Tenant]:
        return [self._tenants[identity] for identity in sorted(self._tenants)]

    def delete(self, identity: str, audit: AuditRecord | None) -> None:
        self._note(audit)
        self._tenants.pop(identity, None)
        self._keys = {prefix: key for prefix, key in self._keys.items() if key.tenant != identity}

    def put_key(self, key: KeyRecord, audit: AuditRecord | None) -> None:
        self._note(audit)
        self._keys[key.prefix] = key

    def delete_key(self, prefix: str, audit: AuditRecord | None) -> None:
        if self._keys.pop(prefix, None) is not None:
            self._note(audit)

    def keys_of(self, identity: str, now: float) -> list[KeyRecord]:
        mine = (key for key in self._keys.values() if key.tenant == identity and is_valid(key, now))
        return sorted(mine, key=lambda key: key.prefix)

    def audit_records(self, month: str) -> list[AuditRecord]:
        return sorted((record for record in self._audit if record.month == month), key=when)

    def _note(self, audit: AuditRecord | None) -> None:
        if audit is not None:
            self._audit.append(audit)
