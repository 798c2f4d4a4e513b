"""The tenant of an API key and its share, cached for at most a minute. Only the verified key names the tenant."""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from dispatcher.model.errors import InvalidRequest, Unauthorized
from dispatcher.model.tenants import KeyRecord, Tenant
from dispatcher.old_ports import Clock, TenantStore
from dispatcher.policies.clocks import Share

CACHE_S = 60.0
"""After this time all processes know a revoked key or a changed limit."""
CACHE_ENTRIES_MAX = 10_000
KEY_CHARS_MAX = 200
SHARED_QUEUE = "everybody"
"""The one queue of the `fcfs` order: BWFQ with a single queue is first come, first served."""

V = TypeVar("V")


class _Cache(Generic[V]):
    """A bounded map. Entries are valid for CACHE_S; the oldest are dropped first."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, tuple[float, V]] = OrderedDict()

    def get(self, key: str, now: float) -> tuple[V] | None:
        found = self._entries.get(key)
        return (found[1],) if found is not None and 0 <= now - found[0] < CACHE_S else None

    def put(self, key: str, value: V, now: float) -> V:
        self._entries.pop(key, None)
        self._entries[key] = (now, value)
        while len(self._entries) > CACHE_ENTRIES_MAX:
            self._entries.popitem(last=False)
        return value


@dataclass(slots=True)
class Directory:
    """Finds the tenant of a key and the share of a queue. `order`: `bwfq`, or the baseline `fcfs`."""

    store: TenantStore
    clock: Clock
    order: str = "bwfq"
    _keys: _Cache[KeyRecord | None] = field(default_factory=_Cache)
    _tenants: _Cache[Tenant | None] = field(default_factory=_Cache)

    async def tenant_of(self, api_key: str | None) -> Tenant:
        """Return the tenant of this key. Raises Unauthorized, with one message for every kind of wrong key."""
        if not api_key or len(api_key) > KEY_CHARS_MAX:
            raise Unauthorized()
        record = await self._key(key_prefix(api_key))
        if record is None or not hmac.compare_digest(record.digest, key_digest(api_key)):
            raise Unauthorized()
        if record.expires_at is not None and self.clock.now() >= record.expires_at:
            raise Unauthorized()
        tenant = await self._tenant(record.tenant)
        if tenant is None:
            raise Unauthorized()
        return replace(tenant, queue=SHARED_QUEUE) if self.order == "fcfs" else tenant

    async def share_of(self, queue: str) -> Share:
        """Return the share of the queue. The shared queue and a deleted tenant's queue have the default share."""
        tenant = None if self.order == "fcfs" else await self._tenant(queue)
        return tenant.share if tenant is not None else Share()

    async def tenant_named(self, name: str) -> Tenant | None:
        """Return a tenant by name, for an invocation that was accepted earlier. None if it is deleted."""
        return await self._tenant(name)

    async def _key(self, prefix: str) -> KeyRecord | None:
        now = self.clock.now()
        cached = self._keys.get(prefix, now)
        return cached[0] if cached else self._keys.put(prefix, await self.store.find_key(prefix), now)

    async def _tenant(self, name: str) -> Tenant | None:
        now = self.clock.now()
        cached = self._tenants.get(name, now)
        return cached[0] if cached else self._tenants.put(name, await self.store.get_tenant(name), now)


KEY_PREFIX_CHARS = 12


def new_key(
    tenant: str, secret: str, expires_at: float | None = None, *, created_at: float = 0.0
) -> tuple[str, KeyRecord]:
    """Return a key to show once, and the record to keep. `secret` has at least 128 random bits after its prefix."""
    if len(secret) < KEY_PREFIX_CHARS + 22:
        raise InvalidRequest("an API key needs at least 128 random bits beyond its prefix")
    key = f"hg-{secret}"
    return key, KeyRecord(key_prefix(key), key_digest(key), tenant, expires_at, created_at)


def key_prefix(key: str) -> str:
    return key[: len("hg-") + KEY_PREFIX_CHARS]


def key_digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
