"""JSON between the gate's processes and in its log: what is read equals what was written."""

from __future__ import annotations

from math import isfinite
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode
"""Does not escape characters beyond ASCII, because escapes would make the longest answer
(gpu_worker/service/executions/execution.py) larger than a frame."""
read_json = msgspec.json.Decoder().decode
"""Refuses NaN, infinities and numbers beyond a float with a ValueError."""


def write_json(value: Any) -> bytes:
    """Return compact JSON. Raises ValueError for a number that is not finite and for half of a surrogate pair, and
    TypeError for an object that msgspec does not know.

    msgspec writes bytes and dates as texts, and sets as lists. The log refuses those: the bytes of an entry are decoded
    and compared (shard/codec.py).
    """
    data = _encode(value)
    if b"null" in data:  # msgspec writes a number that is not finite as null
        _refuse_infinite(value)
    return data


def _refuse_infinite(value: Any) -> None:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        if isinstance(value, float) and not isfinite(value):
            raise ValueError(f"{value!r} is no JSON")
        return
    for item in value:
        _refuse_infinite(item)
