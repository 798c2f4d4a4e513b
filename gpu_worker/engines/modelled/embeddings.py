"""Placeholder embeddings: unit vectors from a hash of the input. Pure.

Equal inputs have equal vectors, different inputs have unrelated ones. A shorter vector is the beginning of a longer
one, scaled to length 1, as OpenAI's `dimensions` shortens them.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from hashlib import shake_128
from math import hypot
from typing import Any

from gpu_worker.engines.interface import EngineError

DIMENSIONS = 256
DIMENSIONS_MAX = 4_096
_BYTES = 4
"""Bytes of the hash for one component, and of a float in base64."""


def inputs_of(body: Mapping[str, Any]) -> list[bytes]:
    """Return the inputs: texts, or token ids as bytes of the same count. Raises EngineError for another form."""
    given = body.get("input")
    several = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
    return [_input(each) for each in several]


def _input(given: Any) -> bytes:
    if isinstance(given, str):
        return given.encode("utf-8", "replace")
    if isinstance(given, list) and all(isinstance(token, int) and abs(token) < 2**31 for token in given):
        return struct.pack(f"<{len(given)}i", *given)  # four bytes: one token of the modelled engine
    raise EngineError("invalid_request", "`input` must be a text, token ids, or a list of these")


def check_dimensions(body: Mapping[str, Any]) -> int:
    """Return the number of dimensions. Raises EngineError for a number that is too large."""
    dimensions: int = body.get("dimensions") or DIMENSIONS
    if not 1 <= dimensions <= DIMENSIONS_MAX:
        raise EngineError("invalid_request", f"`dimensions` must be from 1 to {DIMENSIONS_MAX}")
    return dimensions


def embedding(model: str, content: bytes, body: Mapping[str, Any]) -> list[float] | str:
    """Return the vector in the form of `encoding_format`."""
    dimensions = check_dimensions(body)
    vector = unit_vector(model.encode() + b"\0" + content, dimensions)
    if body.get("encoding_format") != "base64":
        return vector
    return base64.b64encode(struct.pack(f"<{dimensions}f", *vector)).decode()


def unit_vector(content: bytes, dimensions: int) -> list[float]:
    """Return a vector of length 1. Its components are odd numbers before the scaling, so it is never zero."""
    bits = struct.unpack(f"<{dimensions}i", shake_128(content).digest(dimensions * _BYTES))
    length = hypot(*(each | 1 for each in bits))
    return [(each | 1) / length for each in bits]
