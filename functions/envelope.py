"""The payload of a lambda.invoke: the fields beside OpenAI's body, and the answer to an error."""

from __future__ import annotations

import json
import re
from typing import Any

from dispatcher.model.errors import AnsweredError, InvalidRequest
from dispatcher.strict_json import parse_object

ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""An idempotency key, or the id of an invocation."""


def fields_of(event: Any) -> dict[str, Any]:
    """Return the payload, checked like an HTTP body. Raises InvalidRequest, RequestTooLarge."""
    try:
        text = json.dumps(event, separators=(",", ":"), ensure_ascii=False)  # escapes would count six bytes for three
    except RecursionError:
        raise InvalidRequest("The payload is nested too deep.", code="invalid_json") from None
    return parse_object(text)


def api_key_of(fields: dict[str, Any]) -> str | None:
    """Remove `api_key` from the payload and return it. Only the key names the tenant; no later code sees it."""
    key = fields.pop("api_key", None)
    return key if isinstance(key, str) else None


def id_of(value: Any, param: str) -> str | None:
    """Return an id from a caller, or None if it is absent. Raises InvalidRequest."""
    if value is None:
        return None
    if not isinstance(value, str) or not ID.fullmatch(value):
        raise InvalidRequest(f"`{param}` is 1 to 128 letters, digits or any of . _ : -", param)
    return value


def error_payload(error: AnsweredError) -> dict[str, Any]:
    """Return a tenant's error as a normal payload: OpenAI's error object, `status` and, if known, `retry_after_s`."""
    return {**error.body_with_retry(), "status": error.status}
