"""Usage per tenant, application and hour, exact to the token: the stored projection plus the later part of the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dispatcher.model.shards import shard_name
from dispatcher.model.usage import UsageRow
from dispatcher.operations.context import Context
from dispatcher.operations.store_patience import in_time


async def usage_of(context: Context, tenant: str | None, first_hour: int, last_hour: int) -> Sequence[UsageRow]:
    """Return the rows of a tenant (None: of all) in all pools, both hours included, ordered by hour, tenant, app.

    Raises StoreUnavailable.
    """
    # The shards are read first. They drop a row only after it is projected, so no row is missing in both reads.
    held = [
        (shard_name(pool.name, shard), row)
        for pool in context.pools
        for shard, row in await pool.link.usage(tenant, first_hour, last_hour)
    ]
    return merged([*await in_time(context.store.usage(tenant, first_hour, last_hour)), *held])


def merged(rows: Iterable[tuple[str, UsageRow]]) -> Sequence[UsageRow]:
    """Merge (shard, row) pairs into one row per hour, tenant and application.

    Of several rows of one shard, the row with the highest log position counts. The rows of several
    shards are added up: a tenant may use all pools.
    """
    newest: dict[tuple[int, str, str, str], UsageRow] = {}
    for shard, row in rows:
        key = (row.hour, row.tenant, row.app, shard)
        if key not in newest or row.position > newest[key].position:
            newest[key] = row
    totals: dict[tuple[int, str, str], UsageRow] = {}
    for (hour, tenant, app, _), row in sorted(newest.items()):
        total = totals.get((hour, tenant, app))
        totals[hour, tenant, app] = row if total is None else _sum(total, row)
    return list(totals.values())


def _sum(one: UsageRow, other: UsageRow) -> UsageRow:
    return replace(
        one,
        requests=one.requests + other.requests,
        input_tokens=one.input_tokens + other.input_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        service=one.service + other.service,
        cached_tokens=one.cached_tokens + other.cached_tokens,
    )
