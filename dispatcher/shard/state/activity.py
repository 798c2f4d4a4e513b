"""Tracks which tenants have calls: the sum of the active ones' guaranteed rates, and the idle ones to be forgotten."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from dispatcher.policies.orders.queues import Tenant

GROUPS = 64
"""A log of format 5 checks one of these groups a second."""
PARTS = 64
"""A log of format 6 checks as many parts of a group in a second, so that no entry checks many tenants."""
CHECKED_MOST = 200
"""An entry checks no further part after so many tenants."""
SPREAD = 2531
"""The golden section of GROUPS * PARTS, as an odd number: the parts of successive entries are spread evenly."""


class Promises:
    """The sum of the guaranteed rates of active tenants."""

    def __init__(self) -> None:
        self.per_s = 0.0
        self._tenants = 0

    def update(self, tenant: Tenant) -> None:
        """Add or remove the tenant's rate after a change of its rate or of its activity."""
        rate_per_s = tenant.config.rate_per_s if tenant.is_active else 0.0
        if rate_per_s != tenant.promised_per_s:
            self._tenants += (rate_per_s > 0) - (tenant.promised_per_s > 0)
            change = rate_per_s - tenant.promised_per_s
            self.per_s = self.per_s + change if self._tenants else 0.0  # so that rounding does not add up
            tenant.promised_per_s = rate_per_s


class IdleTenants:
    """Tenants without calls, in groups by their names, and in parts of groups."""

    def __init__(self) -> None:
        self._parts: list[set[str]] = [set() for _ in range(GROUPS * PARTS)]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def update(self, tenant: Tenant, *, is_known: bool) -> None:
        """Add or remove the tenant after a change of its activity. `is_known`: the shard holds the tenant."""
        is_idle = is_known and not tenant.is_active
        if is_idle is tenant.is_idle:
            return
        tenant.is_idle = is_idle
        part = self._parts[zlib.crc32(tenant.name.encode()) % len(self._parts)]
        if is_idle:
            part.add(tenant.name)
        else:
            part.discard(tenant.name)

    def due_groups(self, before: float, now: float) -> Iterator[set[str]]:
        """Yield the tenants that are due between two entries of a log of format 5: each group once in GROUPS seconds,
        also if that is all of them. The caller removes forgotten tenants from the set."""
        for second in range(int(before) + 1, min(int(now), int(before) + GROUPS) + 1):
            yield from self._parts[second % GROUPS :: GROUPS]

    def due_parts(self, position: int, before: float, now: float) -> Iterator[set[str]]:
        """Yield the tenants that are due with the entry at `position` of a log of format 6: as many parts in a second
        as a group has, until CHECKED_MOST tenants. The caller removes forgotten tenants from the set."""
        parts = len(self._parts)
        first, count, checked = position * SPREAD, int(now * PARTS) - int(before * PARTS), 0
        for number in range(first, first + min(count, parts)):
            part = self._parts[number % parts]
            checked += len(part)
            yield part
            if checked >= CHECKED_MOST:
                return
