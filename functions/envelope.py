"""The payload of a lambda.invoke: what stands beside OpenAI's body, and how an error is answered."""

from __future__ import annotations

import json
import re
from typing import Any

from dispatcher.model.errors import AnsweredError, InvalidRequest
from dispatcher.strict_json import parse_object

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def fields_of(event: Any) -> dict[str, Any]:
    """The payload within the bounds of what a stranger may send. Raises InvalidRequest, RequestTooLarge."""
    try:
        text = json.dumps(event)
    except RecursionError:
        raise InvalidRequest("The payload is nested too deep.", code="invalid_json") from None
    return parse_object(text)


def api_key_of(fields: dict[str, Any]) -> str | None:
    """Takes `api_key` out of the payload: nothing behind this point sees it. Who the tenant is comes from it alone."""
    key = fields.pop("api_key", None)
    return key if isinstance(key, str) else None


def id_of(value: Any, param: str) -> str | None:
    """An id as a caller gives it. Raises InvalidRequest."""
    if value is None:
        return None
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise InvalidRequest(f"`{param}` is 1 to 128 letters, digits or any of . _ : -", param)
    return value


def error_payload(error: AnsweredError) -> dict[str, Any]:
    """A user's error as a normal payload: OpenAI's error object, the HTTP status, and when to come back."""
    after = {} if error.retry_after_s is None else {"retry_after_s": error.retry_after_s}
    return {**error.body(), "status": error.status, **after}
