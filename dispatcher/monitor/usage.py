"""The exact usage up to now, from the projection in the store and the later totals in the logs, and its last hours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dispatcher.model.usage import HOUR_S, UsageRow
from dispatcher.monitor.follower import LogFollower
from dispatcher.operations.usage import merged
from dispatcher.ports import UsageStore

HOURS = 12
"""So many hours are shown; the last one is the hour that has not ended."""


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


@dataclass(frozen=True, slots=True)
class TenantHours:
    """The totals of a tenant's calls that ended in the hours. `by_hour`: service units, the oldest hour first."""

    tenant: str
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    by_hour: tuple[float, ...] = (0.0,) * HOURS

    @property
    def service(self) -> float:
        return sum(self.by_hour)


def last_hours(now: float) -> tuple[int, int]:
    """Return the first and the last of the shown hours at `now` (Unix seconds), as Unix seconds // 3600."""
    last = int(now // HOUR_S)
    return last - HOURS + 1, last


def tenants_by_hour(rows: Iterable[UsageRow], now: float) -> dict[str, TenantHours]:
    """Return the totals of each tenant with a row in the shown hours, by its name."""
    first, last = last_hours(now)
    found: dict[str, TenantHours] = {}
    for row in rows:
        if first <= row.hour <= last:
            found[row.tenant] = _plus(found.get(row.tenant, TenantHours(row.tenant)), row, row.hour - first)
    return found


def total_of(tenants: Iterable[TenantHours]) -> TenantHours:
    """Return the sum of all tenants, without a name."""
    listed = tuple(tenants)
    return TenantHours(
        "",
        sum(each.requests for each in listed),
        sum(each.input_tokens for each in listed),
        sum(each.output_tokens for each in listed),
        tuple(sum(each.by_hour[hour] for each in listed) for hour in range(HOURS)),
    )


def _plus(total: TenantHours, row: UsageRow, hour: int) -> TenantHours:
    by_hour = list(total.by_hour)
    by_hour[hour] += row.service
    return TenantHours(
        total.tenant,
        total.requests + row.requests,
        total.input_tokens + row.input_tokens,
        total.output_tokens + row.output_tokens,
        tuple(by_hour),
    )
