"""Finds the tenant of an API key, and caches it for at most a minute. Nothing but a verified key selects a tenant.

Lookups that find no key are limited. So a caller that guesses keys cannot overload the table, lock out a tenant that
this process has not seen, or push known keys out of the cache. A lookup that finds a key does not count, because a new
process must be able to find the keys of all its tenants at once.

Whether a key exists is known only after its lookup. So each lookup takes a use of a budget before it, and gets it back
if it finds the key. What a front knows before the lookup decides which budget it takes:

- A key ends with a check of its other characters (`new_key`). Keys with a right check have one budget, and
  all others another: typing errors, keys of other services, guesses, and keys that were made before there was a check.
- An address has a part of each budget. Its further lookups are refused, and other addresses have the rest.
- If others have used up a budget, an address that sent a known key lately takes a reserve.

So no flood of one address, and no flood of keys without the check, refuses a tenant that sends a key with the check
from an address of its own. A flood of keys with the check from many addresses refuses only tenants at new addresses.
The budgets bound the lookups of unknown keys to three times LimitSettings.unknown_keys_per_s.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

from dispatcher.model.errors import InvalidRequest, Refused, StoreUnavailable, Unauthorized
from dispatcher.model.tenants import KeyRecord, Tenant, TenantStore
from dispatcher.operations.limits import LimitSettings, TokenBucket
from dispatcher.operations.store_patience import in_time
from dispatcher.ports import Clock

ADDRESSES_MAX = 10_000
"""The most addresses that are remembered, for their part of a budget and for their last known key."""
_ADDRESS_PART = 0.5
"""The part of a budget that one address may use."""
_LATELY_S = 3600.0
"""For this time after a known key, an address may use the reserve."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """A use of some budgets."""

    buckets: tuple[TokenBucket, ...]

    def give_back(self) -> None:
        for bucket in self.buckets:
            bucket.give_back()


class LookupBudget:
    """The budgets of one process. An empty address is unknown, as in Lambda: it has no part and no reserve."""

    def __init__(self, limits: LimitSettings, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._checked, self._unchecked, self._reserve = (self._bucket(1.0) for _ in range(3))
        self._parts: OrderedDict[tuple[str, bool], TokenBucket] = OrderedDict()
        """The part of each address in a budget, the least recently used one first."""
        self._known: OrderedDict[str, float] = OrderedDict()
        """When each address last sent a known key (monotonic seconds), the longest ago first."""

    def take(self, address: str, *, is_checked: bool) -> Lookup:
        """Take a use for a key; its check is right if `is_checked`. Raises Refused."""
        taken: list[TokenBucket] = []
        try:
            if address:
                self._use(self._part(address, is_checked), taken)
            common = self._checked if is_checked else self._unchecked
            if wait_s := common.take():
                if not self._is_known(address) or self._reserve.take():
                    raise _refusal(wait_s)
                common = self._reserve
            taken.append(common)
        except Refused:
            Lookup(tuple(taken)).give_back()
            raise
        return Lookup(tuple(taken))

    def note_known(self, address: str) -> None:
        """Remember that the address sent a known key."""
        if address:
            self._known.pop(address, None)
            self._known[address] = self._clock.monotonic()
            if len(self._known) > ADDRESSES_MAX:
                self._known.popitem(last=False)

    def _use(self, bucket: TokenBucket, taken: list[TokenBucket]) -> None:
        if wait_s := bucket.take():
            raise _refusal(wait_s)
        taken.append(bucket)

    def _part(self, address: str, is_checked: bool) -> TokenBucket:
        place = (address, is_checked)
        bucket = self._parts.pop(place, None) or self._bucket(_ADDRESS_PART)
        self._parts[place] = bucket
        if len(self._parts) > ADDRESSES_MAX:
            self._parts.popitem(last=False)
        return bucket

    def _is_known(self, address: str) -> bool:
        at = self._known.get(address, -math.inf)
        return self._clock.monotonic() - at < _LATELY_S

    def _bucket(self, part: float) -> TokenBucket:
        burst = max(1.0, part * self._limits.unknown_keys_burst) if self._limits.unknown_keys_burst else 0.0
        return TokenBucket(part * self._limits.unknown_keys_per_s, burst, self._clock)


def _refusal(wait_s: float) -> Refused:
    after_s = float(math.ceil(min(60.0, max(1.0, wait_s))))
    message = (
        "Too many unknown API keys were sent to this server. For now it looks up no others "
        f"(limit `unknown_keys`). Try again in about {after_s:g} s."
    )
    return Refused(message, "unknown_keys", after_s)


CACHE_S = 60.0
"""After this time all processes know that a key was revoked or a limit changed."""
LOOK_S = 10.0
"""While a request of a tenant waits, its process looks so often whether the tenant still exists."""
WAITING_END_S = 3 * LOOK_S
"""A waiting request ends within this time after its tenant was deleted, and the time of one read of the store: a look
that another request's read makes unnecessary, one that begins a read, and one that finds its result."""
CACHE_ENTRIES_MAX = 10_000
_KEY_CHARS_MAX = 200
_NO_KEY = "No API key was sent. Send it in the header `Authorization: Bearer KEY`, or as `api_key` to lambda.invoke."

V = TypeVar("V")


class _Cache(Generic[V]):
    """A bounded map. Entries are valid for CACHE_S; the oldest are dropped first."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, tuple[float, V]] = OrderedDict()

    def get(self, key: str, now: float) -> tuple[V] | None:
        found = self._entries.get(key)
        return (found[1],) if found is not None and 0 <= now - found[0] < CACHE_S else None

    def last(self, key: str) -> tuple[float, V] | None:
        """Return the entry's time and its value, valid or expired."""
        return self._entries.get(key)

    def has_had(self, key: str) -> bool:
        """Return whether the key has an entry, valid or expired."""
        return key in self._entries

    def put(self, key: str, value: V, now: float) -> V:
        self._entries.pop(key, None)
        self._entries[key] = (now, value)
        while len(self._entries) > CACHE_ENTRIES_MAX:
            self._entries.popitem(last=False)
        return value

    def drop(self, key: str) -> None:
        self._entries.pop(key, None)


class Directory:
    """Finds the tenant of a key. `limits` bounds the lookups of unknown keys."""

    def __init__(self, store: TenantStore, clock: Clock, limits: LimitSettings | None = None) -> None:
        limits = limits or LimitSettings()
        self._store = store
        self._clock = clock
        self._keys: _Cache[KeyRecord] = _Cache()
        self._unknown_keys: _Cache[None] = _Cache()
        self._tenants: _Cache[Tenant | None] = _Cache()
        self._reading: dict[str, asyncio.Task[KeyRecord | None]] = {}
        """The lookups that are under way, by the key's prefix."""
        self._reading_tenants: dict[str, asyncio.Task[Tenant | None]] = {}
        """The same, by the tenant's identity."""
        self._looking: set[str] = set()
        """The tenants that are being read again."""
        self._lookups = LookupBudget(limits, clock)

    async def tenant_of(self, api_key: str | None, address: str = "") -> Tenant:
        """Return the tenant of this key, with the SLO class of the key if it has one. `address`: the caller's.

        Raises Unauthorized, with one message for every kind of wrong key.
        Raises Refused if too many unknown keys were looked up.
        """
        if not api_key:
            raise Unauthorized(_NO_KEY)
        if len(api_key) > _KEY_CHARS_MAX:
            raise Unauthorized()
        record = await self._key(api_key, address)
        if record is None or not hmac.compare_digest(record.digest, key_digest(api_key)):
            raise Unauthorized()
        self._lookups.note_known(address)
        if record.expires_at is not None and self._clock.now() >= record.expires_at:
            raise Unauthorized()
        tenant = await self.tenant_of_identity(record.tenant)
        if tenant is None:
            raise Unauthorized()
        return replace(tenant, slo_class=record.slo_class) if record.slo_class else tenant

    async def tenant_of_identity(self, identity: str) -> Tenant | None:
        """Return a tenant, for an invocation that was accepted earlier. None if it is deleted. Concurrent callers share
        one read."""
        now = self._clock.now()
        if cached := self._tenants.get(identity, now):
            return cached[0]
        reading = self._reading_tenants.get(identity)
        if reading is None:
            reading = self._reading_tenants[identity] = asyncio.ensure_future(self._read_tenant(identity, now))
            reading.add_done_callback(partial(_forget_reading, self._reading_tenants, identity))
        return await asyncio.shield(reading)

    async def check_not_deleted(self, tenant: Tenant) -> None:
        """Read a tenant of `tenant_of` again, before data that was kept for it is shown. Raises Unauthorized."""
        is_known = self._tenants.last(tenant.identity) is not None
        if is_known and await self._read_tenant(tenant.identity, self._clock.now()) is None:
            raise Unauthorized()

    def is_deleted(self, identity: str) -> bool:
        """Return whether the last read of the tenant found none. False if this process has not read it. Reads
        nothing."""
        last = self._tenants.last(identity)
        return last is not None and last[1] is None

    async def look_again(self, identity: str) -> None:
        """Read a tenant again that this process has read before, unless that was less than LOOK_S ago.

        The task of a waiting request calls this, so that the request ends soon after its tenant. If the store does not
        answer, the tenant counts as existing.
        """
        now, last = self._clock.now(), self._tenants.last(identity)
        if last is None or last[1] is None or identity in self._looking or 0 <= now - last[0] < LOOK_S:
            return
        self._looking.add(identity)
        try:
            await self._read_tenant(identity, now)
        except StoreUnavailable:
            return
        finally:
            self._looking.discard(identity)

    async def _read_tenant(self, identity: str, now: float) -> Tenant | None:
        return self._tenants.put(identity, await in_time(self._store.get_tenant(identity)), now)

    async def _key(self, api_key: str, address: str) -> KeyRecord | None:
        """Return the key's record. Concurrent callers with the same prefix share one lookup."""
        prefix, now = key_prefix(api_key), self._clock.now()
        if cached := self._keys.get(prefix, now):
            return cached[0]
        if self._unknown_keys.get(prefix, now):
            return None
        reading = self._reading.get(prefix)
        if reading is None:
            lookup = None
            if not self._keys.has_had(prefix):
                lookup = self._lookups.take(address, is_checked=has_check(api_key))
            reading = self._reading[prefix] = asyncio.ensure_future(self._read_key(prefix, now, lookup))
            reading.add_done_callback(partial(_forget_reading, self._reading, prefix))
        return await asyncio.shield(reading)

    async def _read_key(self, prefix: str, now: float, lookup: Lookup | None) -> KeyRecord | None:
        record = await in_time(self._store.find_key(prefix))
        if record is None:
            self._keys.drop(prefix)
            return self._unknown_keys.put(prefix, None, now)
        if lookup is not None:
            lookup.give_back()
        return self._keys.put(prefix, record, now)


def _forget_reading(readings: dict[str, asyncio.Task[V]], name: str, reading: asyncio.Task[V]) -> None:
    del readings[name]
    if not reading.cancelled():
        reading.exception()  # each waiting caller raises it


_KEY_PREFIX_CHARS = 12
_CHECK_CHARS = 6
"""The last characters of a key follow from the others, so that a typing error or a guess is seen without a lookup."""


def new_key(
    tenant: str, secret: str, expires_at: float | None = None, *, created_at: float = 0.0, slo_class: str = ""
) -> tuple[str, KeyRecord]:
    """Return a key, to be shown once, and the record to store. `secret` must have at least 128 random bits after its
    first _KEY_PREFIX_CHARS characters. Raises InvalidRequest if it is shorter."""
    if len(secret) < _KEY_PREFIX_CHARS + 22:
        raise InvalidRequest("an API key needs at least 128 random bits beyond its prefix")
    key = f"hg-{secret}{_check_of(secret)}"
    return key, KeyRecord(key_prefix(key), key_digest(key), tenant, expires_at, created_at, slo_class)


def key_prefix(key: str) -> str:
    return key[: len("hg-") + _KEY_PREFIX_CHARS]


def has_check(key: str) -> bool:
    """Return whether a key ends with its check. Keys that were made before there was one do not, and are valid."""
    secret = key.removeprefix("hg-")
    return secret != key and secret[-_CHECK_CHARS:] == _check_of(secret[:-_CHECK_CHARS])


def _check_of(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()[:_CHECK_CHARS]


def key_digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
