"""A strict JSON parser for request bodies: bounded size and depth, no NaN, no duplicate keys, no lone surrogates."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from dispatcher.model.errors import InvalidRequest, RequestTooLarge

BODY_BYTES_MAX = 1_000_000
DEPTH_MAX = 64
"""A JSON schema of a tool is nested four levels deep in a body, and has two levels for each level of its data."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape of half a character beyond U+FFFF. UTF-8 itself has none."""
_BOM = "\ufeff"
"""Some editors and libraries write it before a text."""


def parse_object(raw: bytes | str, *, bytes_max: int = BODY_BYTES_MAX) -> dict[str, Any]:
    """Return the JSON object in `raw`. A byte order mark before it is ignored (RFC 8259, section 8.1).

    Raises InvalidRequest (400) or RequestTooLarge (413).
    """
    size_bytes = len(raw.encode("utf-8", "surrogatepass")) if isinstance(raw, str) else len(raw)
    if size_bytes > bytes_max:
        raise RequestTooLarge(f"The request body has {size_bytes} bytes; at most {bytes_max} are accepted.")
    try:
        text = (raw if isinstance(raw, str) else raw.decode("utf-8")).removeprefix(_BOM)
    except UnicodeDecodeError:
        raise InvalidRequest("The request body is not UTF-8.", code="invalid_json") from None
    if not text.strip():
        raise InvalidRequest("The request body is empty. Send a JSON object.", code="invalid_json")
    value = _loads(text)
    if not isinstance(value, dict):
        raise InvalidRequest("The request body must be a JSON object.", code="invalid_json")
    _check_depth(value)
    if isinstance(raw, str) or _SURROGATE.search(text):
        _check_text(value)
    return value


def _loads(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique)
    except InvalidRequest:
        raise
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidRequest(f"The request body is not valid JSON{where}.", code="invalid_json") from None


def _refuse_constant(name: str) -> Any:
    raise InvalidRequest(f"{name} is not valid JSON.", code="invalid_json")


def _finite(text: str) -> float:
    """Return the number. JSON allows one like 1e999, but it is infinite as a float, and then no JSON any more."""
    number = float(text)
    if not math.isfinite(number):
        raise InvalidRequest("The request body has a number that is out of range.", code="invalid_json")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidRequest("The request body names one key twice.", code="invalid_json")
    return found


def _check_depth(value: dict[str, Any]) -> None:
    """Refuse deep nesting, so that every later recursion is bounded. (The parser itself allows about 1,000 levels.)"""
    level: list[Any] = [value]
    for _ in range(DEPTH_MAX):
        level = [
            child
            for item in level
            for child in (item.values() if type(item) is dict else item)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    raise InvalidRequest(f"The request body is nested deeper than {DEPTH_MAX}.", code="invalid_json")


def _check_text(value: Any) -> None:
    """Refuse lone surrogates. They are valid JSON, but no later step can encode them as UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidRequest("The request body contains a lone surrogate.", code="invalid_json") from None
