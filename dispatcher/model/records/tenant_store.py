"""The port to the configuration of tenants and their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dispatcher.model.records.audit import AuditRecord
from dispatcher.model.records.tenants import KeyRecord, Tenant


class TenantStore(Protocol):
    """A change may carry its audit record: both are written, or neither. operations/tenants/administration.py always
    gives one.

    A tenant is stored under its identity (model/records/tenants.py), and a name has at most one tenant.
    """

    async def find_key(self, prefix: str) -> KeyRecord | None: ...

    async def get_tenant(self, identity: str) -> Tenant | None: ...

    async def find_tenant(self, name: str) -> Tenant | None:
        """Return the tenant that has this name, or this whole identity; None if there is none."""
        ...

    async def put_tenant(
        self, tenant: Tenant, *, expected_version: int | None, audit: AuditRecord | None = None
    ) -> bool:
        """Create the tenant (`expected_version` None), or replace its configuration that has `expected_version`.

        Return False, and write nothing, if a tenant has the name of the new one already, or the version has changed.
        """
        ...

    async def list_tenants(self) -> Sequence[Tenant]: ...

    async def delete_tenant(self, identity: str, *, audit: AuditRecord | None = None) -> None:
        """Delete the configuration and the keys. The name is free after that."""
        ...

    async def put_key(self, key: KeyRecord, *, audit: AuditRecord | None = None) -> None: ...

    async def delete_key(self, prefix: str, *, audit: AuditRecord | None = None) -> None: ...

    async def keys_of(self, identity: str) -> Sequence[KeyRecord]: ...

    async def audit_records(self, month: str) -> Sequence[AuditRecord]:
        """Return the records of a month in UTC, such as "2026-11", oldest first."""
        ...
