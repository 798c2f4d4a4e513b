"""Makes the read models of a shard, its tenants and their usage, from its state."""

from __future__ import annotations

from collections import defaultdict
from operator import itemgetter

from dispatcher.model.usage import TenantRow, UsageRow
from dispatcher.policies.orders.queues import Tenant
from dispatcher.shard.state.records import Usage
from dispatcher.shard.state.state import State


def usage_rows(state: State) -> list[UsageRow]:
    """Return the totals of usage that the state holds."""
    return [_usage_row(state, key, usage) for key, usage in state.usage.items()]


def unsaved_usage(state: State) -> list[tuple[int, UsageRow]]:
    """Return (position of its last change, row) for each total that changed since `usage_saved`, by position."""
    return sorted(
        (
            (usage.position, _usage_row(state, key, usage))
            for key, usage in state.usage.items()
            if usage.position >= state.usage_saved
        ),
        key=itemgetter(0),
    )


def _usage_row(state: State, key: tuple[str, str, int], usage: Usage) -> UsageRow:
    requests, read, generated, service, _, cached = usage
    return UsageRow(*key, requests, read, generated, service, state.position, cached)


def tenant_rows(state: State) -> list[TenantRow]:
    reserved: defaultdict[str, float] = defaultdict(float)
    for worker in state.workers.values():
        for call in worker.running.values():
            reserved[call.tenant.name] += call.cost
    return [_row(state, tenant, reserved[tenant.name]) for tenant in state.tenants.values()]


def _row(state: State, tenant: Tenant, reserved: float) -> TenantRow:
    return TenantRow(
        tenant=tenant.name,
        version=tenant.config.version,
        tier=tenant.config.tier,
        weight=tenant.config.weight,
        rate_per_s=tenant.config.rate_per_s,
        burst=tenant.config.burst,
        waiting=tenant.waiting + tenant.suspended,
        running=tenant.running,
        reserved=reserved,
        spent=tenant.spent,
        clocks=tenant.clocks,
        credit=_credit(state, tenant),
        at=state.at,
        position=state.position,
    )


def _credit(state: State, tenant: Tenant) -> float | None:
    """Return the service units left in the bucket, (now - tat) x rate, at most burst (clocks.py)."""
    if not tenant.config.rate_per_s or len(tenant.clocks) != 2:
        return None
    return min(tenant.config.burst, (state.at - tenant.clocks[0]) * tenant.config.rate_per_s)
