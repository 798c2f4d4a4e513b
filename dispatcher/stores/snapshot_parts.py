"""Splits snapshots into parts, for stores with small items. The parts are written first, and the manifest last.

A snapshot without a manifest was never finished. If the parts do not have the manifest's checksum, the snapshot is
torn: parts were lost or have expired. A reader skips both kinds and uses an older snapshot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

PART_BYTES_MAX = 390_000


@dataclass(frozen=True, slots=True)
class Manifest:
    """Names a complete snapshot of the state after all entries below `position`."""

    position: int
    nonce: str
    """A random name: two snapshots of the same position have different ones."""
    parts: int
    checksum: str
    """SHA-256 of the whole state, hexadecimal."""


def split(position: int, nonce: str, state: bytes) -> tuple[list[bytes], Manifest]:
    """Return the parts in order, at least one, and their manifest."""
    parts = [state[start : start + PART_BYTES_MAX] for start in range(0, len(state), PART_BYTES_MAX)] or [b""]
    return parts, Manifest(position, nonce, len(parts), checksum(state))


def join(manifest: Manifest, parts: Sequence[bytes]) -> bytes | None:
    """Return the state, or None if the snapshot is torn."""
    state = b"".join(parts)
    complete = len(parts) == manifest.parts and checksum(state) == manifest.checksum
    return state if complete else None


def checksum(state: bytes) -> str:
    return hashlib.sha256(state).hexdigest()
