"""The secrets that the processes of a fleet share. A process signs with the first and accepts each of them.

A secret is rotated in three steps, each of which every process must have read before the next: `A,B`, `B,A`, `B`. At
any time two processes then accept each other's signatures, because each accepts what the other signs with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

SECRET_CHARS_MIN = 16
SECRETS_MAX = 2


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
    if len(secrets) > SECRETS_MAX:
        raise ValueError(f"{len(secrets)} secrets are separated by commas; at most {SECRETS_MAX} are valid at once")
    if min(map(len, secrets)) < SECRET_CHARS_MIN:
        raise ValueError(f"each secret must have at least {SECRET_CHARS_MIN} characters")
    return secrets
