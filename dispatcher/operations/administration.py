"""Creates, changes and deletes tenants, and rotates their keys. Only administrators may use this, never tenants.

The settings that an administrator chooses have the names of the file of tenants, which dispatcher/settings/sections.py
reads: weight, rate_per_s, burst, tier, queue_max, max_tokens, models, adapters, slo_class, prefix_group.

What is kept for a deleted tenant is deleted too: its responses, files, batches, and answers under idempotency keys. No
key leads to the tenant any more, so nothing of this can be read. What is not deleted here expires by itself: what a
process writes after this, and on DynamoDB the responses and answers (ports.Store.erase).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

from dispatcher.model.batches import FileStore
from dispatcher.model.errors import ConfigurationError
from dispatcher.model.facts import WorkerSet
from dispatcher.model.tenants import AuditRecord, KeyRecord, Tenant, TenantStore, check_model_name, has_id, new_identity
from dispatcher.operations.directory import new_key
from dispatcher.policies.clocks import Share
from dispatcher.policies.share_bounds import SHARE_BOUNDS, share_problem
from dispatcher.policies.tiers import Tier
from dispatcher.ports import Clock, Ids, Store

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_KEYS_MAX = 2
"""A tenant's key, and the new key that replaces it."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """A tenant that was deleted. `is_erased`: its kept data is deleted too, as far as the store can list it."""

    identity: str
    is_erased: bool


class TenantAdmin(Protocol):
    """What an administrator can do: here with a store, and in headgate/cli/tenants/admin_function.py through
    headgate-admin.

    `name`: the tenant's name, or its whole identity. All methods raise ConfigurationError.
    """

    async def create(self, tenant: Tenant) -> str: ...

    async def change(self, name: str, settings: Mapping[str, Any]) -> Tenant: ...

    async def delete(self, name: str) -> Deleted: ...

    async def rotate_key(self, name: str, slo_class: str = "", *, lives_s: float | None = None) -> str: ...

    async def revoke_key(self, name: str, prefix: str) -> None: ...

    async def existing(self, name: str) -> Tenant: ...

    async def all(self) -> Sequence[Tenant]: ...

    async def keys(self, name: str) -> Sequence[KeyRecord]: ...

    async def audit(self, month: str) -> Sequence[AuditRecord]: ...


class StoreAdmin:
    """Changes a store. Each change leaves its audit record, which names `actor`; it is asked once.

    `data`: deletes what is kept for a deleted tenant. None: this administrator may not, and it expires by itself.
    """

    def __init__(
        self, store: TenantStore, ids: Ids, clock: Clock, actor: Callable[[], str], data: TenantData | None = None
    ) -> None:
        self._store, self._ids, self._clock, self._actor, self._data = store, ids, clock, cache(actor), data

    async def create(self, tenant: Tenant) -> str:
        """Write the tenant and return its first key, which is never shown again.

        The first version is the present Unix second; each change adds one. So a tenant that is deleted and created
        again has a higher version than before, and the log never takes the old share for the newer one. (Its identity
        is new too, unless an older version of headgate creates it.)
        """
        name = tenant.identity
        if not NAME.fullmatch(name):
            raise ConfigurationError(f"a tenant's name is 1 to 64 of a-z, 0-9 and -, not {name[:80]!r}")
        _check_bounds(settings_of(tenant))
        identity = new_identity(name, self._ids.new())
        created = replace(tenant, identity=identity, version=max(1, int(self._clock.now())))
        audit = self._record("tenant.create", identity, None, settings_of(created))
        if not await self._store.put_tenant(created, expected_version=None, audit=audit):
            raise ConfigurationError(f"there is a tenant {name!r} already")
        return await self._add_key(identity)

    async def change(self, name: str, settings: Mapping[str, Any]) -> Tenant:
        """Change these settings (`with_settings`). All processes use them within a minute."""
        tenant = await self.existing(name)
        _check_bounds(settings)
        changed = replace(with_settings(tenant, settings), version=tenant.version + 1)
        audit = self._record("tenant.change", tenant.identity, settings_of(tenant), settings_of(changed))
        if not await self._store.put_tenant(changed, expected_version=tenant.version, audit=audit):
            raise ConfigurationError(f"tenant {name!r} was changed by another operator just now: show it and try again")
        return changed

    async def delete(self, name: str) -> Deleted:
        """Delete the tenant and its keys, and then what is kept for it (docs/shares.md has the times).

        If this breaks off after the first step, nothing of the tenant can be read any more, and the rest can be
        repeated with its identity.
        """
        tenant = await self._store.find_tenant(name)
        if tenant is None and has_id(name) and self._data is not None:
            return Deleted(name, await self._data.erase(name))
        tenant = await self.existing(name)
        keys = {"keys": [key.prefix for key in await self._store.keys_of(tenant.identity)]}
        audit = self._record("tenant.delete", tenant.identity, {**settings_of(tenant), **keys}, None)
        await self._store.delete_tenant(tenant.identity, audit=audit)
        return Deleted(tenant.identity, self._data is not None and await self._data.erase(tenant.identity))

    async def rotate_key(self, name: str, slo_class: str = "", *, lives_s: float | None = None) -> str:
        """Return a new key. Delete all old keys but the newest, so that callers can switch.

        `slo_class`: the SLO class of requests with this key; empty: that of the tenant. `lives_s`: the key is refused
        after this time; None: it does not expire.
        """
        identity = (await self.existing(name)).identity
        for old in (await self._keys_of(identity))[: -(_KEYS_MAX - 1)]:
            await self._delete_key(old)
        return await self._add_key(identity, slo_class, lives_s)

    async def revoke_key(self, name: str, prefix: str) -> None:
        """Delete one key of the tenant; every process refuses it within a minute.

        Another tenant's key is refused in the same words as one that does not exist.
        """
        found = [key for key in await self.keys(name) if key.prefix == prefix]
        if not found:
            raise ConfigurationError(
                f"tenant {name!r} has no key {prefix[:80]!r}: `headgate tenants keys {name}` lists them"
            )
        await self._delete_key(found[0])

    async def existing(self, name: str) -> Tenant:
        tenant = await self._store.find_tenant(name)
        if tenant is None:
            raise ConfigurationError(f"there is no tenant {name!r}")
        return tenant

    async def all(self) -> Sequence[Tenant]:
        return await self._store.list_tenants()

    async def keys(self, name: str) -> Sequence[KeyRecord]:
        """Return the tenant's valid keys, the oldest first."""
        return await self._keys_of((await self.existing(name)).identity)

    async def audit(self, month: str) -> Sequence[AuditRecord]:
        """Return the records of a month in UTC, such as "2026-11", oldest first."""
        return await self._store.audit_records(month)

    async def _keys_of(self, identity: str) -> Sequence[KeyRecord]:
        return sorted(await self._store.keys_of(identity), key=lambda key: key.created_at)

    async def _add_key(self, identity: str, slo_class: str = "", lives_s: float | None = None) -> str:
        now = self._clock.now()
        expires_at = None if lives_s is None else now + lives_s
        key, record = new_key(identity, self._ids.secret(), expires_at, created_at=now, slo_class=slo_class)
        await self._store.put_key(record, audit=self._record("key.create", identity, None, _visible_fields(record)))
        return key

    async def _delete_key(self, key: KeyRecord) -> None:
        audit = self._record("key.delete", key.tenant, _visible_fields(key), None)
        await self._store.delete_key(key.prefix, audit=audit)

    def _record(
        self, action: str, tenant: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
    ) -> AuditRecord:
        return AuditRecord(self._ids.new(), self._clock.now(), self._actor(), action, tenant, before, after)


@dataclass(frozen=True, slots=True)
class Booking:
    """The sum of a pool's guaranteed rates, and its measured capacity (0 if unknown), in service units a second."""

    promised_per_s: float
    capacity_per_s: float

    @property
    def is_overbooked(self) -> bool:
        return 0 < self.capacity_per_s < self.promised_per_s


def booking(tenants: Iterable[Tenant], workers: Iterable[WorkerSet], models: Collection[str]) -> Booking:
    """Return the sum of a pool's guaranteed rates, and the measured capacity of its workers that are not silent.

    A guarantee holds in each pool, for tenants that may use one of its `models`; none given: all tenants.
    """
    own = (each for each in tenants if not models or each.models is None or not set(models).isdisjoint(each.models))
    promised = sum(tenant.share.rate_per_s for tenant in own)
    return Booking(promised, sum(worker.service_per_s for worker in workers if worker.state != "silent"))


def _visible_fields(key: KeyRecord) -> dict[str, Any]:
    """Return what may be shown of a key."""
    shown = {"key": key.prefix, "slo_class": key.slo_class, "expires_at": key.expires_at}
    return {name: value for name, value in shown.items() if value}


def settings_of(tenant: Tenant) -> dict[str, Any]:
    """Return all settings, as plain values."""
    return {
        "weight": tenant.share.weight,
        "rate_per_s": tenant.share.rate_per_s,
        "burst": tenant.share.burst,
        "tier": tenant.tier.value,
        "queue_max": tenant.queue_items_max,
        "max_tokens": tenant.max_tokens_max,
        "models": None if tenant.models is None else list(tenant.models),
        "adapters": list(tenant.adapters),
        "slo_class": tenant.slo_class,
        "prefix_group": tenant.prefix_group,
    }


def with_settings(tenant: Tenant, settings: Mapping[str, Any]) -> Tenant:
    """Return the tenant with these settings; the others stay. Raises ConfigurationError for invalid ones."""
    merged = {**settings_of(tenant), **settings}
    try:
        share = Share(merged["weight"], merged["rate_per_s"], merged["burst"])
        models = None if merged["models"] is None else tuple(map(check_model_name, merged["models"]))
        adapters = tuple(map(check_model_name, merged["adapters"] or ()))
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    return replace(
        tenant,
        share=share,
        tier=Tier(merged["tier"]),
        queue_items_max=merged["queue_max"],
        max_tokens_max=merged["max_tokens"],
        models=models,
        adapters=adapters,
        slo_class=merged["slo_class"],
        prefix_group=merged["prefix_group"],
    )


def _check_bounds(settings: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for a new setting outside the bounds of shares (policies/share_bounds.py).

    Reading does not check them, so a tenant that is older than the bounds can still be read, changed and deleted.
    """
    for setting in SHARE_BOUNDS:
        problem = share_problem(setting, settings[setting]) if setting in settings else None
        if problem is not None:
            raise ConfigurationError(f"{setting} {problem}")


def difference(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ, each as (before, after). None has no settings."""
    old, new = before or {}, after or {}
    names = [*old, *(name for name in new if name not in old)]
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}


class TenantData:
    """The kept data of deleted tenants. `files`: None if the service has no batch API."""

    def __init__(self, store: Store, files: FileStore | None) -> None:
        self._store, self._files = store, files

    async def erase(self, identity: str) -> bool:
        """Delete the data, unless a batch of the tenant is open. Return whether it is deleted.

        An open batch still reads its file. The process that runs it stops it soon, and then deletes everything
        (batches/run.py). May be repeated. Raises StoreUnavailable.
        """
        if any(batch.is_open for batch in await self._store.batches(identity)):
            return False
        await self.erase_all(identity)
        return True

    async def erase_all(self, identity: str) -> None:
        """Delete the data, also that of open batches. Bytes are deleted before the records that name them.

        Raises StoreUnavailable.
        """
        if self._files is not None:
            parts = [part for batch in await self._store.batches(identity) for part in batch.parts]
            for name in [*parts, *(record.blob for record in await self._store.files(identity))]:
                await self._files.delete(name)
        await self._store.erase(identity)
