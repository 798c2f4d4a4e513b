"""Read models of a shard's log: usage per tenant, application and hour, and the state of its tenants. Pure."""

from __future__ import annotations

from dataclasses import dataclass

HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Totals of the calls that ended within one hour. `service` in service units."""

    tenant: str
    app: str
    hour: int
    """Unix seconds // 3600."""
    requests: int
    input_tokens: int
    output_tokens: int
    service: float
    position: int
    """The totals contain every entry below this position of the shard's log."""
    cached_tokens: int = 0
    """The part of the input tokens that engines found in their prefix caches."""


@dataclass(frozen=True, slots=True)
class TenantRow:
    """The state of an active tenant, from the log. Costs and service in service units, times in Unix seconds."""

    tenant: str
    version: int
    """The version of its configuration that the last decision used."""
    tier: str
    weight: float
    rate_per_s: float
    burst: float
    waiting: int
    """Calls in its queue."""
    running: int
    """Calls that hold a slot."""
    reserved: float
    """The sum of the estimates of the calls that hold a slot."""
    spent: float
    """The true service of its calls that ended since it became active."""
    clocks: tuple[float, ...]
    """The numbers that the shard's order keeps for it."""
    credit: float | None
    """The service units left in its bucket, below zero if it used more than its guarantee; None without a guarantee."""
    at: float
    """The time for which `credit` is computed."""
    position: int
    """The row contains every entry below this position of the shard's log."""
