"""What a shard of several needs of its pool (policies/slot_shares.py), kept up to date tenant by tenant.

Derived from the tenants and workers, and not in the log.
"""

from __future__ import annotations

from typing import NamedTuple

from dispatcher.policies.orders.queues import Tenant
from dispatcher.policies.slot_shares import ShardNeed


class _Part(NamedTuple):
    """What one tenant adds to the sums."""

    light: int = 0
    heavy: int = 0
    waiting: int = 0
    deferred: int = 0
    weight: float = 0.0


_NONE = _Part()


class NeedSums:
    """The sums over all tenants."""

    def __init__(self) -> None:
        self._parts: dict[str, _Part] = {}
        self._light = self._heavy = self._waiting = self._deferred = 0
        self._weight = 0.0

    def update(self, tenant: Tenant) -> None:
        """Replace what the tenant adds, after a change of its calls or of its share."""
        direct, running = tenant.direct, tenant.running
        light, heavy, weight = (0, running, tenant.config.weight) if direct else (running, 0, 0.0)
        part, old = _Part(light, heavy, direct, tenant.waiting - direct, weight), self._parts.get(tenant.name, _NONE)
        if part == old:
            return
        if part == _NONE:
            del self._parts[tenant.name]
        else:
            self._parts[tenant.name] = part
        self._light += part.light - old.light
        self._heavy += part.heavy - old.heavy
        self._waiting += part.waiting - old.waiting
        self._deferred += part.deferred - old.deferred
        self._weight = self._weight + part.weight - old.weight if self._waiting else 0.0  # so no rounding adds up

    def need(self, slots: int, promised_per_s: float, capacity_per_s: float, virtual_time: float) -> ShardNeed:
        """Return what the shard needs. The arguments are fields of ShardNeed."""
        return ShardNeed(
            slots, self._light, self._heavy, self._waiting, self._deferred, self._weight, promised_per_s,
            capacity_per_s, virtual_time,
        )  # fmt: skip
