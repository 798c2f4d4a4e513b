"""A tenant's identity on its way from vLLM's API server to our scheduler: an entry of the header `tracestate`. Pure.

vLLM hands the two headers of the W3C's trace context to its engine core with every request, for chat, completions,
responses and embeddings, streamed or not, whether it traces or not. `tracestate` has an entry for each vendor, so no
body is read or changed for an identity (tenants.py writes it), and embeddings have one, which have no `vllm_xargs`.

    headgate=SIGNATURE/TIER/WEIGHT/TENANT        the tenant percent-encoded; TIER is `-` if the operator names none

A client can send such an entry itself. So it is signed (HMAC-SHA256, 128 bits) with a secret that the API server and
the engine core share: a server without our middleware has nothing that could sign, and an entry of a client is ignored.
No answer of vLLM contains the header.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

from dispatcher.policies.tiers import Tier

SECRET_VARIABLE = "HEADGATE_TENANTS_SECRET"  # noqa: S105 (the name of a variable)
"""Set at the start of the server (plugin.py), and inherited by its engine core. Engine cores of other machines need the
same value."""
HEADER = "tracestate"
_NAME = "headgate"
_ENTRY = f"{_NAME}="
_SIGNATURE_CHARS = 32
_NO_TIER = "-"


@dataclass(frozen=True, slots=True)
class TenantIdentity:
    """`tier`: None if the operator names none for the tenant."""

    tenant: str
    tier: Tier | None = None
    weight: float = 1.0


def add_entry(tracestate: str, identity: TenantIdentity, secret: str) -> str:
    """Return the header with this identity in place of any that it has."""
    tier = _NO_TIER if identity.tier is None else identity.tier.value
    text = f"{tier}/{identity.weight!r}/{quote(identity.tenant, safe='')}"
    return ",".join((f"{_ENTRY}{_sign(text, secret)}/{text}", *_entries_of_others(tracestate)))


def remove_entry(tracestate: str) -> str:
    """Return the header without an identity: a client's own."""
    return ",".join(_entries_of_others(tracestate))


def read_identity(trace_headers: object, secret: str) -> TenantIdentity | None:
    """Return the identity of one of vLLM's requests; None if it has none or one that we have not signed. Never raises:
    that would end vLLM's core."""
    header = trace_headers.get(HEADER) if isinstance(trace_headers, Mapping) else None
    if not secret or not isinstance(header, str):
        return None
    entry = next((each.strip() for each in header.split(",") if each.strip().startswith(_ENTRY)), "")
    signature, _, text = entry.removeprefix(_ENTRY).partition("/")
    if not hmac.compare_digest(signature.encode("utf-8", "surrogatepass"), _sign(text, secret).encode()):
        return None
    try:
        tier, weight, tenant = text.split("/")
        return TenantIdentity(unquote(tenant), None if tier == _NO_TIER else Tier(tier), float(weight))
    except ValueError:  # signed by another version of this module
        return None


def _entries_of_others(tracestate: str) -> list[str]:
    entries = (entry.strip() for entry in tracestate.split(","))
    return [entry for entry in entries if entry and entry.partition("=")[0].strip().lower() != _NAME]


def _sign(text: str, secret: str) -> str:
    return hmac.digest(secret.encode(), text.encode("utf-8", "surrogatepass"), "sha256").hex()[:_SIGNATURE_CHARS]
