"""The configuration of tenants and their API keys. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from dispatcher.policies.clocks import Share
from dispatcher.policies.tiers import Tier


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant's configuration. Limits are checked before a request is queued; a limit of 0 allows nothing."""

    name: str
    share: Share = field(default_factory=Share)
    tier: Tier = Tier.STANDARD
    models: tuple[str, ...] | None = None
    """The models that the tenant may use; None: all models of all pools."""
    queue_items_max: int = 1000
    """The most invocations that may wait in its queue."""
    max_tokens_max: int = 4096
    """The highest `max_tokens` that a request may have."""
    version: int = 1
    slo_class: str = ""
    """The SLO class of its requests (policies/planning/slo.py). Empty: the usual one."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An API key as it is stored. The key itself is never stored."""

    prefix: str
    digest: str
    """SHA-256 of the whole key, hexadecimal."""
    tenant: str
    expires_at: float | None = None
    created_at: float = 0.0
    """Unix seconds. While one key replaces another, it shows which of the two is newer."""
    slo_class: str = ""
    """The SLO class of requests with this key. Empty: that of the tenant."""


def check_model_name(name: str) -> str:
    """Return a model's name. Raises ValueError for one that no model can have."""
    if not name.strip() or not name.isprintable() or name != name.strip():
        raise ValueError(f"a model's name has visible characters and no spaces around it, not {name[:80]!r}")
    return name
