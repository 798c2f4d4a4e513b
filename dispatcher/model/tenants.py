"""The configuration of tenants and their API keys. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from dispatcher.policies.clocks import Share
from dispatcher.policies.tiers import Tier


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant's configuration. Limits are checked before a request is queued; a limit of 0 allows nothing."""

    name: str
    pool: str = "default"
    share: Share = field(default_factory=Share)
    tier: Tier = Tier.STANDARD
    models: tuple[str, ...] | None = None
    """The models that it may use; None means all of the pool."""
    queue_items_max: int = 1000
    """Most invocations that may wait in its queue."""
    max_tokens_max: int = 4096
    """Highest max_tokens of a request."""
    version: int = 1


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An API key as it is stored. The key itself is never stored."""

    prefix: str
    digest: str
    """SHA-256 of the whole key, hexadecimal."""
    tenant: str
    expires_at: float | None = None
    created_at: float = 0.0
    """Unix seconds. Orders two keys while one replaces the other."""
