"""Tenants and their keys, as they are configured. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from dispatcher.policies.clocks import Share
from dispatcher.policies.tiers import Tier


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant's configuration. A limit of 0 allows none of it; limits are checked before anything is queued."""

    name: str
    queue: str
    """The line its invocations wait in: its own name; under the `fcfs` order everybody's."""
    pool: str = "default"
    share: Share = field(default_factory=Share)
    tier: Tier = Tier.STANDARD
    models: tuple[str, ...] | None = None
    """Models it may use; None for all of the pool."""
    queue_items_max: int = 1000
    """Most invocations that may wait in its line."""
    max_tokens_max: int = 4096
    """Highest max_tokens that it may ask for."""
    version: int = 1


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An API key as it is stored: never the key itself."""

    prefix: str
    digest: str
    """SHA-256 of the whole key, hexadecimal."""
    tenant: str
    expires_at: float | None = None
    created_at: float = 0.0
    """Tells the newer of two while a key is being rotated."""
