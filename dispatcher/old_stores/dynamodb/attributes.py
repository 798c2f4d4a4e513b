"""Values as DynamoDB's low-level API wants them, and back. Numbers travel as decimals: exact both ways."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from dispatcher.old_stores.numbers import exact

Item = dict[str, Any]
"""Attribute name -> value in Python's types: str, bool, Decimal, dict, list."""
Encoded = dict[str, dict[str, Any]]
"""Attribute name -> AttributeValue."""


def encode(value: Any) -> dict[str, Any]:
    """An AttributeValue. Raises TypeError for what cannot be stored, ValueError for a number that is not finite."""
    if isinstance(value, str):
        return {"S": value}
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
    """Attributes that are None are left out."""
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
    return format(value if isinstance(value, int | Decimal) else exact(value), "f")
