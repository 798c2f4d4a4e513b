"""Tenants: their configuration, their API keys, the record of each change, and the port that keeps all of it. Pure.

A tenant has a name and an identity. People type and read the name. Everything that is stored for a tenant belongs to
its identity: keys, queue, usage, kept responses, files, batches, answers under an idempotency key. The identity is the
name, a separator and a random id, such as `acme.k3f9x2m7q8ab`. It is never given twice, so a tenant that is created
under the name of a deleted tenant reads nothing of it. No name has the separator, so no name equals such an identity.
The identity of a tenant that was created before there were identities is its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from dispatcher.policies.clocks import Share
from dispatcher.policies.tiers import Tier

PREFIX_GROUP = r"[A-Za-z0-9._:-]{0,64}"
"""The name of a prefix group; empty for none."""
_SEPARATOR = "."
"""It stands between name and id. Names of blobs may have it (model/batches.py), and names of tenants may not."""


def new_identity(name: str, identifier: str) -> str:
    """Return the identity of a new tenant. `identifier`: random characters of a-z and 0-9."""
    return f"{name}{_SEPARATOR}{identifier}"


def name_of(identity: str) -> str:
    """Return the name of the tenant with this identity."""
    return identity.partition(_SEPARATOR)[0]


def has_id(text: str) -> bool:
    """Return whether this is an identity with an id: neither a name nor the identity of an older tenant."""
    return _SEPARATOR in text


def is_named(identity: str, text: str) -> bool:
    """Return whether `text`, a name or a whole identity as an operator types it, means this identity."""
    return identity == text or name_of(identity) == text


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant's configuration. Limits are checked before a request is queued; a limit of 0 allows nothing."""

    identity: str
    """What data belongs to. A tenant that is not created yet has its name here."""
    share: Share = field(default_factory=Share)
    tier: Tier = Tier.STANDARD
    models: tuple[str, ...] | None = None
    """The models that the tenant may use; None: all models of all pools."""
    queue_items_max: int = 1000
    """The most invocations that may wait in its queue."""
    max_tokens_max: int = 4096
    """The highest `max_tokens` that a request may have."""
    version: int = 1
    slo_class: str = ""
    """The SLO class of its requests (policies/planning/slo.py). Empty: the usual one."""
    adapters: tuple[str, ...] = ()
    """The adapters that the tenant may use, beside the models. For a tenant without it, an adapter is unknown."""
    prefix_group: str = ""
    """The tenants of a group share cached prefixes in the engines. Empty: the tenant shares none with any other."""

    @property
    def sharing(self) -> str:
        """What its cached prefixes are known by: its group, or itself. No identity has a space."""
        return f"group {self.prefix_group}" if self.prefix_group else self.identity

    @property
    def name(self) -> str:
        return name_of(self.identity)

    def may_use(self, model: str) -> bool:
        """Return whether the tenant may use a model (not an adapter) of this name."""
        return self.models is None or model in self.models


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An API key as it is stored. The key itself is never stored."""

    prefix: str
    digest: str
    """SHA-256 of the whole key, hexadecimal."""
    tenant: str
    """The identity of its tenant."""
    expires_at: float | None = None
    created_at: float = 0.0
    """Unix seconds. While one key replaces another, it shows which of the two is newer."""
    slo_class: str = ""
    """The SLO class of requests with this key. Empty: that of the tenant."""


def check_model_name(name: str) -> str:
    """Return a model's name. Raises ValueError for one that no model can have."""
    if not name.strip() or not name.isprintable() or name != name.strip():
        raise ValueError(f"a model's name has visible characters and no spaces around it, not {name[:80]!r}")
    return name


class AuditRecord(NamedTuple):
    """A change that was made. It is written with the change, both or neither, and never changed or deleted."""

    id: str
    """Random. It orders records of the same millisecond."""
    at: float
    """Unix seconds."""
    actor: str
    """Who made the change: the ARN of an AWS identity, or `local:USER@HOST` without AWS."""
    action: str
    """`tenant.create`, `tenant.change`, `tenant.delete`, `key.create` or `key.delete`."""
    tenant: str
    before: Mapping[str, Any] | None
    """The fields before the change; None for what is new. Of a key never more than its first characters."""
    after: Mapping[str, Any] | None
    """The fields after the change; None for what was deleted."""

    @property
    def month(self) -> str:
        """The month in UTC, such as "2026-11"."""
        return datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m")


class TenantStore(Protocol):
    """A change may carry its audit record: both are written, or neither. operations/administration.py always
    gives one.

    A tenant is stored under its identity, and a name has at most one tenant.
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
