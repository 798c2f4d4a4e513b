"""Grants: short-lived signed permissions to execute one attempt on one worker.

A worker is reachable by more than the gate on any network that one did not build oneself, so it executes only what
carries a grant: HMAC-SHA-256 under a secret that gate and workers share, bound to the worker, the tenant, the
invocation, the attempt, the slot and the very bytes of the request, and expiring within seconds.
Standard library only: the worker verifies it on a box that has nothing else.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import dataclass

EXECUTION_TOKEN_TTL_S = 30.0
"""How long a grant opens a worker's door. The execution itself may last longer."""


class ExecutionTokenRefused(Exception):
    """Not a grant, not signed by us, expired, or for something else. The message never repeats the grant."""


@dataclass(frozen=True, slots=True)
class ExecutionToken:
    worker: str
    tenant: str
    invocation: str
    attempt: int
    slot: int
    expires_at: float
    body_digest: str

    @property
    def execution(self) -> str:
        return f"{self.tenant}/{self.invocation}#{self.attempt}"


def cache_salt(tenant: str, secret: bytes) -> str:
    """What sets a tenant's prefixes apart in a worker's cache: its own for ever, and nobody can guess another's."""
    return hmac.new(secret, b"cache" + tenant.encode(), hashlib.sha256).hexdigest()


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def sign(grant: ExecutionToken, secret: bytes) -> str:
    """The grant as a header value: payload and signature, base64url, joined by a dot."""
    payload = json.dumps(
        {name: getattr(grant, name) for name in ExecutionToken.__slots__}, separators=(",", ":")
    ).encode()
    return f"{_encode(payload)}.{_encode(_mac(payload, secret))}"


def verify(token: str, secret: bytes, *, worker: str, body: bytes, now: float) -> ExecutionToken:
    """The grant inside `token`. Raises GrantRefused for anything but a fresh one for this worker and body."""
    grant = _opened(token, secret)
    if grant.worker != worker:
        raise ExecutionTokenRefused("the grant is for another worker")
    if now >= grant.expires_at:
        raise ExecutionTokenRefused("the grant has expired")
    if not hmac.compare_digest(grant.body_digest, digest(body)):
        raise ExecutionTokenRefused("the grant is for another request")
    return grant


def _opened(token: str, secret: bytes) -> ExecutionToken:
    try:
        payload, signature = (_decode(part) for part in token.split(".", 1))
    except (ValueError, binascii.Error):
        raise ExecutionTokenRefused("not a grant") from None
    if not hmac.compare_digest(signature, _mac(payload, secret)):
        raise ExecutionTokenRefused("the grant is not signed by this fleet")
    return ExecutionToken(**json.loads(payload))


def _mac(payload: bytes, secret: bytes) -> bytes:
    return hmac.new(secret, payload, hashlib.sha256).digest()


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
