"""The configuration of tenants and their API keys. Pure.

A tenant has a name and an identity. People type and read the name. Everything that is stored for a tenant belongs to
its identity: keys, queue, usage, kept responses, files, batches, answers under an idempotency key. The identity is the
name, a separator and a random id, such as `acme.k3f9x2m7q8ab`. It is never given twice, so a tenant that is created
under the name of a deleted tenant reads nothing of it. No name has the separator, so no name equals such an identity.
The identity of a tenant that was created before there were identities is its name.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dispatcher.policies.clocks import Share
from dispatcher.policies.tiers import Tier

SEPARATOR = "."
"""It stands between name and id. Names of blobs may have it (model/records/files.py), and names of tenants may not."""


def new_identity(name: str, identifier: str) -> str:
    """Return the identity of a new tenant. `identifier`: random characters of a-z and 0-9."""
    return f"{name}{SEPARATOR}{identifier}"


def name_of(identity: str) -> str:
    """Return the name of the tenant with this identity."""
    return identity.partition(SEPARATOR)[0]


def has_id(text: str) -> bool:
    """Return whether this is an identity with an id: neither a name nor the identity of an older tenant."""
    return SEPARATOR in text


def is_named(identity: str, text: str) -> bool:
    """Return whether `text`, a name or a whole identity as an operator types it, means this identity."""
    return identity == text or name_of(identity) == text


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant's configuration. Limits are checked before a request is queued; a limit of 0 allows nothing."""

    identity: str
    """What data belongs to. A tenant that is not created yet has its name here."""
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

    @property
    def name(self) -> str:
        return name_of(self.identity)


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An API key as it is stored. The key itself is never stored."""

    prefix: str
    digest: str
    """SHA-256 of the whole key, hexadecimal."""
    tenant: str
    """The identity of its tenant."""
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
