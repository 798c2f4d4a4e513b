"""Usage per tenant, application and hour, exact to the token: the stored projection plus the later part of the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dispatcher.model.usage import UsageRow
from dispatcher.operations.context import Context


async def usage_of(context: Context, tenant: str | None, first_hour: int, last_hour: int) -> Sequence[UsageRow]:
    """Return the rows of a tenant (None: of all), both hours included, ordered by hour, tenant, application.

    Raises StoreUnavailable.
    """
    # The shard first: it drops a row only after it was projected, so the store then has it.
    held = await context.link.usage(tenant, first_hour, last_hour)
    projected = await context.store.usage(tenant, first_hour, last_hour)
    return merged([*projected, *held])


def merged(rows: Iterable[UsageRow]) -> Sequence[UsageRow]:
    """Return one row per hour, tenant and application: the row with the highest log position."""
    newest: dict[tuple[int, str, str], UsageRow] = {}
    for row in rows:
        key = (row.hour, row.tenant, row.app)
        if key not in newest or row.position > newest[key].position:
            newest[key] = row
    return [newest[key] for key in sorted(newest)]
