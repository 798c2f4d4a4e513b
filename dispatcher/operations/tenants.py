"""Creates, changes and deletes tenants, and rotates their keys. Only operators may use this, never tenants."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dispatcher.model.errors import ConfigurationError
from dispatcher.model.facts import WorkerSet
from dispatcher.model.tenants import Tenant
from dispatcher.operations.directory import new_key
from dispatcher.policies.clocks import Share
from dispatcher.ports import Clock, Ids, TenantStore

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
KEYS_MAX = 2
"""A tenant's key, and the new key that replaces it."""

Change = Callable[[Tenant], Tenant]


@dataclass(frozen=True, slots=True)
class Booking:
    """The sum of a pool's guaranteed rates, and its measured capacity (0 if unknown), in service units a second."""

    promised_per_s: float
    capacity_per_s: float

    @property
    def is_overbooked(self) -> bool:
        return 0 < self.capacity_per_s < self.promised_per_s


async def create(store: TenantStore, ids: Ids, clock: Clock, tenant: Tenant) -> str:
    """Write the tenant and return its first key, which is never shown again. Raises ConfigurationError.

    The first version is the present Unix second; each change adds one. So a tenant that is deleted and created again
    has a higher version than before, and the log never takes the old share for the newer one.
    """
    if not NAME.fullmatch(tenant.name):
        raise ConfigurationError(f"a tenant's name is 1 to 64 of a-z, 0-9 and -, not {tenant.name[:80]!r}")
    created = replace(tenant, version=max(1, int(clock.now())))
    if not await store.put_tenant(created, expected_version=None):
        raise ConfigurationError(f"there is a tenant {tenant.name!r} already")
    return await _add_key(store, ids, clock, tenant.name)


async def change(store: TenantStore, name: str, how: Change) -> Tenant:
    """Apply `how` to the tenant's configuration. All processes use it within a minute. Raises ConfigurationError."""
    tenant = await existing(store, name)
    changed = replace(how(tenant), version=tenant.version + 1)
    if not await store.put_tenant(changed, expected_version=tenant.version):
        raise ConfigurationError(f"tenant {name!r} was changed by another operator just now: show it and try again")
    return changed


async def rotate_key(
    store: TenantStore, ids: Ids, clock: Clock, name: str, slo_class: str = "", *, lives_s: float | None = None
) -> str:
    """Return a new key. Delete all old keys but the newest, so that callers can switch. Raises ConfigurationError.

    `slo_class`: the SLO class of requests with this key; empty: that of the tenant. `lives_s`: the key is refused after
    this time; None: it does not expire.
    """
    await existing(store, name)
    oldest_first = sorted(await store.keys_of(name), key=lambda key: key.created_at)
    for old in oldest_first[: -(KEYS_MAX - 1)]:
        await store.delete_key(old.prefix)
    return await _add_key(store, ids, clock, name, slo_class, lives_s)


async def revoke_key(store: TenantStore, name: str, prefix: str) -> None:
    """Delete one key of the tenant; every process refuses it within a minute. Raises ConfigurationError.

    Another tenant's key is refused in the same words as one that does not exist.
    """
    await existing(store, name)
    if prefix not in {key.prefix for key in await store.keys_of(name)}:
        raise ConfigurationError(
            f"tenant {name!r} has no key {prefix[:80]!r}: `headgate tenants keys {name}` lists them"
        )
    await store.delete_key(prefix)


async def delete(store: TenantStore, name: str) -> None:
    """Delete the tenant and its keys. Raises ConfigurationError if there is no such tenant."""
    await existing(store, name)
    await store.delete_tenant(name)


async def existing(store: TenantStore, name: str) -> Tenant:
    tenant = await store.get_tenant(name)
    if tenant is None:
        raise ConfigurationError(f"there is no tenant {name!r}")
    return tenant


async def booking(store: TenantStore, workers: Sequence[WorkerSet], pool: str) -> Booking:
    """Return the sum of the pool's guaranteed rates, and the measured capacity of the workers that are not silent."""
    promised = sum(tenant.share.rate_per_s for tenant in await store.list_tenants() if tenant.pool == pool)
    return Booking(promised, sum(worker.service_per_s for worker in workers if worker.state != "silent"))


def share(weight: float, rate_per_s: float, burst: float) -> Share:
    """Return the share. Raises ConfigurationError for invalid numbers."""
    try:
        return Share(weight, rate_per_s, burst)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


async def _add_key(
    store: TenantStore, ids: Ids, clock: Clock, name: str, slo_class: str = "", lives_s: float | None = None
) -> str:
    now = clock.now()
    expires_at = None if lives_s is None else now + lives_s
    key, record = new_key(name, ids.secret(), expires_at, created_at=now, slo_class=slo_class)
    await store.put_key(record)
    return key
