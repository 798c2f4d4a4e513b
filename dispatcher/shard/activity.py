"""Tracks which tenants have calls: the sum of the active ones' guaranteed rates, and the idle ones to be forgotten."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from dispatcher.policies.orders.queues import Tenant

GROUPS = 64


class Promises:
    """The sum of the guaranteed rates of active tenants."""

    def __init__(self) -> None:
        self.per_s = 0.0
        self._tenants = 0

    def update(self, tenant: Tenant) -> None:
        """Add or remove the tenant's rate after a change of its rate or of its activity."""
        rate_per_s = tenant.rate_per_s if tenant.is_active else 0.0
        if rate_per_s != tenant.promised_per_s:
            self._tenants += (rate_per_s > 0) - (tenant.promised_per_s > 0)
            change = rate_per_s - tenant.promised_per_s
            self.per_s = self.per_s + change if self._tenants else 0.0  # so that rounding does not add up
            tenant.promised_per_s = rate_per_s


class IdleTenants:
    """Tenants without calls, in groups by their names. Each group is checked once in GROUPS seconds."""

    def __init__(self) -> None:
        self._groups: list[set[str]] = [set() for _ in range(GROUPS)]

    def __len__(self) -> int:
        return sum(map(len, self._groups))

    def update(self, tenant: Tenant, *, is_known: bool) -> None:
        """Add or remove the tenant after a change of its activity. `is_known`: the shard holds the tenant."""
        is_idle = is_known and not tenant.is_active
        if is_idle is tenant.is_idle:
            return
        tenant.is_idle = is_idle
        group = self._groups[zlib.crc32(tenant.name.encode()) % GROUPS]
        if is_idle:
            group.add(tenant.name)
        else:
            group.discard(tenant.name)

    def due(self, before: float, now: float) -> Iterator[set[str]]:
        """Yield the groups that are due between two entries, each at most once. The caller removes forgotten
        tenants."""
        for second in range(int(before) + 1, min(int(now), int(before) + GROUPS) + 1):
            yield self._groups[second % GROUPS]
