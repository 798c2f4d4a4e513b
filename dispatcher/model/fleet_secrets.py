"""The secrets that the processes of a fleet share, and execution tokens, which are signed with them. Pure.

A process signs with the first secret and accepts each of them. A secret is rotated in three steps, each of which every
process must have read before the next: `A,B`, `B,A`, `B`. At any time two processes then accept each other's
signatures, because each accepts what the other signs with.

An execution token is a short-lived signed permission to execute one attempt on one worker. Processes that are not part
of the gate may reach a worker's port, so a worker executes only an order with a token. The token is signed with
HMAC-SHA-256. It is valid for one worker, call and attempt, for the exact bytes of the order, for EXECUTION_TOKEN_TTL_S
seconds, and once: the worker begins no attempt a second time (gpu_worker/service/executions/executions.py).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dispatcher.model.worker_protocol import execution_name

_SECRET_CHARS_MIN = 16
_SECRETS_MAX = 2


class FleetSecrets:
    """One secret or two. Iteration yields the secrets, the signing one first. The representation shows none of them."""

    def __init__(self, text: str) -> None:
        """`text`: the secrets, separated by a comma. Raises ValueError."""
        self._secrets = _parse_secrets(text)

    @property
    def signing(self) -> bytes:
        return self._secrets[0]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._secrets)

    def accepts(self, proves: Callable[[bytes], bool]) -> bytes | None:
        """Return the first secret for which `proves` is true, or None."""
        return next(filter(proves, self._secrets), None)

    def replace(self, text: str) -> None:
        """Take other secrets from now on. Raises ValueError, and keeps the present ones."""
        self._secrets = _parse_secrets(text)


def _parse_secrets(text: str) -> tuple[bytes, ...]:
    secrets = tuple(part.strip().encode() for part in text.split(","))
    if len(secrets) > _SECRETS_MAX:
        raise ValueError(f"{len(secrets)} secrets are separated by commas; at most {_SECRETS_MAX} are valid at once")
    if min(map(len, secrets)) < _SECRET_CHARS_MIN:
        raise ValueError(f"each secret must have at least {_SECRET_CHARS_MIN} characters")
    return secrets


EXECUTION_TOKEN_TTL_S = 30.0
"""The worker must receive the order within this time after the signing. The execution may last longer."""


class ExecutionTokenRefused(Exception):
    """The token is malformed, not signed by this fleet, expired, or for another order. The message omits the token."""


@dataclass(frozen=True, slots=True)
class ExecutionToken:
    """`invocation`: the call's id in the log. `expires_at`: Unix seconds, by the signer's clock."""

    worker: str
    invocation: str
    attempt: int
    expires_at: float
    body_digest: str

    @property
    def execution(self) -> str:
        return execution_name(self.invocation, self.attempt)


def cache_salt(tenant: str, secret: bytes, prefix_group: str = "") -> str:
    """Return the salt that separates a tenant's prefixes from those of all other tenants in a worker's cache.

    The tenants of a prefix group have one salt together. A salt is the same until the secret is rotated. It cannot be
    computed without the secret. (No tenant's identity has the zero byte before a group's name.)
    """
    sharing = f"group\0{prefix_group}" if prefix_group else tenant
    return hmac.new(secret, b"cache" + sharing.encode(), hashlib.sha256).hexdigest()


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def sign(token: ExecutionToken, secret: bytes) -> str:
    """Return the token as a header value: payload and signature in base64url, joined by a dot."""
    fields = {name: getattr(token, name) for name in ExecutionToken.__slots__}
    payload = json.dumps(fields, separators=(",", ":")).encode()
    return f"{_encode(payload)}.{_encode(_mac(payload, secret))}"


def verify(signed: str, secrets: FleetSecrets, *, worker: str, body: bytes, now: float) -> ExecutionToken:
    """Return the token in the header value `signed`.

    Raises ExecutionTokenRefused unless this fleet signed it for this worker and this body, and it has not expired.
    """
    token = _open_token(signed, secrets)
    if token.worker != worker:
        raise ExecutionTokenRefused("the execution token is for another worker")
    if now >= token.expires_at:
        raise ExecutionTokenRefused("the execution token has expired")
    if not hmac.compare_digest(token.body_digest, digest(body)):
        raise ExecutionTokenRefused("the execution token is for another request")
    return token


def _open_token(signed: str, secrets: FleetSecrets) -> ExecutionToken:
    try:
        payload, signature = (_decode(part) for part in signed.split(".", 1))
    except (ValueError, binascii.Error):
        raise ExecutionTokenRefused("not an execution token") from None
    if not secrets.accepts(lambda secret: hmac.compare_digest(signature, _mac(payload, secret))):
        raise ExecutionTokenRefused("the execution token is not signed by this fleet")
    return ExecutionToken(**json.loads(payload))


def _mac(payload: bytes, secret: bytes) -> bytes:
    return hmac.new(secret, payload, hashlib.sha256).digest()


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
