"""A tenant's identity on its way from vLLM's API server to our scheduler: an entry of `trace_headers`. Pure.

vLLM hands these to its engine core with every request, generating or pooling. It takes two names from a client's
headers, `traceparent` and `tracestate`, and no other. So an entry with our name is from our middleware in the server's
process (tenants.py), and no client can make one. vLLM's own tracing reads the two names only.

Python code that makes its own requests (in_process.py) adds the same entry to a request's parameters. A client can
write there too, so it counts only where the settings trust it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from dispatcher.policies.share_bounds import WEIGHT_MAX, WEIGHT_MIN
from dispatcher.policies.tiers import Tier

TENANT_CHARS_MAX = 128
_NAME = "headgate"
_NO_TIER = "-"


@dataclass(frozen=True, slots=True)
class TenantIdentity:
    """`tier`: None if the operator names none for the tenant. `prefix_group`: tenants that share cached prefixes with
    it; None: it shares none. The scheduler does not need the group, so `add_identity` leaves it out."""

    tenant: str
    tier: Tier | None = None
    weight: float = 1.0
    prefix_group: str | None = None


def cache_salt(identity: TenantIdentity, own: str | None) -> str:
    """Return the salt of a request's prefixes: of its tenant's group, or of its tenant alone. `own`: the client's.

    The client's salt is a part of the hash, so no client can write the salt of another group.
    """
    group = identity.prefix_group
    sharing = ("tenant", identity.tenant) if group is None else ("group", group)
    return sha256(json.dumps([*sharing, own]).encode()).hexdigest()


def add_identity(trace_headers: Mapping[str, str] | None, identity: TenantIdentity) -> dict[str, str]:
    """Return a request's trace headers with the identity."""
    return {**(trace_headers or {}), _NAME: write_entry(identity)}


def read_identity(trace_headers: object) -> TenantIdentity | None:
    """Return the identity of one of vLLM's requests; None if it has none. Never raises: that would end vLLM's core."""
    return read_entry(trace_headers.get(_NAME)) if isinstance(trace_headers, Mapping) else None


def write_entry(identity: TenantIdentity) -> str:
    """Return the identity as a text."""
    tier = _NO_TIER if identity.tier is None else identity.tier.value
    return f"{tier}/{identity.weight!r}/{identity.tenant}"


def read_entry(entry: object) -> TenantIdentity | None:
    """Return the identity that `write_entry` wrote; None for anything else. Never raises."""
    if not isinstance(entry, str):
        return None
    try:
        tier, weight, tenant = entry.split("/", 2)
        found = TenantIdentity(tenant, None if tier == _NO_TIER else Tier(tier), float(weight))
    except ValueError:  # of another version of this module
        return None
    return found if is_tenant(tenant) and WEIGHT_MIN <= found.weight <= WEIGHT_MAX else None


def is_tenant(name: str) -> bool:
    """Return whether a text can be the name of a tenant."""
    return 0 < len(name) <= TENANT_CHARS_MAX and name.isprintable() and name == name.strip()
