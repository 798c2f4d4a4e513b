"""Encodes and decodes values for DynamoDB's low-level API. Numbers are sent as decimals and keep their exact values."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from math import isfinite
from typing import Any

from dispatcher.stores.table import Item

Encoded = dict[str, dict[str, Any]]
"""Attribute name -> AttributeValue."""


def encode(value: Any) -> dict[str, Any]:
    """Return an AttributeValue. Raises TypeError, and ValueError for a number that is not finite."""
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, bytes):
        return {"B": value}
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, int | float | Decimal):
        return {"N": _number(value)}
    if isinstance(value, Mapping):
        return {"M": encode_item(value)}
    if isinstance(value, list | tuple):
        return {"L": [encode(element) for element in value]}
    raise TypeError(f"cannot store a {type(value).__name__}")


def encode_item(item: Mapping[str, Any]) -> Encoded:
    """Return the encoded item, without the attributes that are None."""
    return {name: encode(value) for name, value in item.items() if value is not None}


def decode(value: Mapping[str, Any]) -> Any:
    ((kind, content),) = value.items()
    if kind == "N":
        return Decimal(content)
    if kind == "M":
        return decode_item(content)
    if kind == "L":
        return [decode(element) for element in content]
    return content


def decode_item(item: Mapping[str, Mapping[str, Any]]) -> Item:
    return {name: decode(value) for name, value in item.items()}


def _number(value: int | float | Decimal) -> str:
    """Return the number as text. A float becomes the shortest decimal that gives the same float (at most 17 digits)."""
    if isinstance(value, float):
        if not isfinite(value):
            raise ValueError(f"only finite numbers can be stored, not {value!r}")
        value = Decimal(repr(value))
    return format(value, "f")
