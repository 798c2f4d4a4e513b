"""Reads the exact usage up to now: the projection in the store, and the later totals in the logs."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.model.usage import UsageRow
from dispatcher.monitor.follower import LogFollower
from dispatcher.operations.usage import merged
from dispatcher.ports import UsageStore


async def usage_rows(
    store: UsageStore, followers: Sequence[LogFollower], tenant: str | None, first_hour: int, last_hour: int
) -> Sequence[UsageRow]:
    """Return the rows of a tenant (None: of all) in all pools, also in those that are not configured any more.

    Both hours are included. The rows are ordered by hour, tenant and application.
    """
    return merged(await _pairs(store, followers, tenant, first_hour, last_hour))


async def pool_usage_rows(
    store: UsageStore, follower: LogFollower, first_hour: int, last_hour: int
) -> Sequence[UsageRow]:
    """Return the rows of all tenants in the follower's pool alone, as `usage_rows`."""
    pairs = await _pairs(store, [follower], None, first_hour, last_hour)
    return merged(pair for pair in pairs if pair[0] == follower.shard)


async def _pairs(
    store: UsageStore, followers: Sequence[LogFollower], tenant: str | None, first_hour: int, last_hour: int
) -> list[tuple[str, UsageRow]]:
    # The logs are read first. A shard drops a row only after it is projected, so no row is missing in both reads.
    held: list[tuple[str, UsageRow]] = []
    for follower in followers:
        await follower.catch_up()
        held += [(follower.shard, row) for row in follower.usage(tenant, first_hour, last_hour)]
    return [*await store.usage(tenant, first_hour, last_hour), *held]
