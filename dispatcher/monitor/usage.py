"""Reads the exact usage up to now: the projection in the store, and the later totals in the log."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.model.usage import UsageRow
from dispatcher.monitor.follower import LogFollower
from dispatcher.operations.usage import merged
from dispatcher.ports import UsageStore


async def usage_rows(
    store: UsageStore, follower: LogFollower, tenant: str | None, first_hour: int, last_hour: int
) -> Sequence[UsageRow]:
    """Return the rows of a tenant (None: of all), both hours included, ordered by hour, tenant and application."""
    # The log is read first. The shard drops a row only after it is projected, so no row is missing in both reads.
    await follower.catch_up()
    held = follower.usage(tenant, first_hour, last_hour)
    return merged([*await store.usage(tenant, first_hour, last_hour), *((follower.shard, row) for row in held)])
