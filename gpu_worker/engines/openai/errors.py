"""What an error of the server means for the request. Pure.

| the server's answer | error |
| --- | --- |
| 400, 413, 422 | the request's own fault: `context_length_exceeded` if the text says so, else `invalid_request` |
| 429, 503 | `engine_overloaded`: the gate tries again |
| anything else | `generation_failed`: the gate tries again |

A tenant gets the server's text for its own faults only: any other text may show how the service is built.
"""

from __future__ import annotations

import json
import re
from typing import Any

from gpu_worker.engines.interface import EngineError, PromptTooLong

TEXT_CHARS_MAX = 500
OWN_FAULTS = frozenset({400, 413, 422})
OVERLOADED = frozenset({429, 503})
_TOO_LONG = re.compile(
    r"context.{0,3}(length|size|window)|maximum.{0,20}(length|tokens)|too long|max_model_len", re.IGNORECASE
)


def failed(reason: str) -> EngineError:
    return EngineError("generation_failed", f"the engine failed on this request: {reason}")


def error_of_status(status: int, body: bytes) -> EngineError:
    """Return the error of an HTTP error. `body`: as much of it as was read."""
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError):
        payload = None
    return _error(status, _text(payload))


def error_of_chunk(chunk: dict[str, Any]) -> EngineError:
    """Return the error that the server sends in the middle of an answer."""
    error = chunk.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    return _error(code if isinstance(code, int) else 500, _text(chunk))


def _error(status: int, text: str) -> EngineError:
    if status in OWN_FAULTS:
        if _TOO_LONG.search(text):
            return PromptTooLong(text)
        return EngineError("invalid_request", text or "the engine refused the request as invalid")
    if status in OVERLOADED:
        return EngineError("engine_overloaded", "the engine takes no more requests for now")
    return failed("it reported an error")


def _text(payload: Any) -> str:
    """Return the message in `{"error": {"message": …}}`, `{"error": …}`, `{"message": …}` or `{"detail": …}`."""
    for _ in range(3):
        if isinstance(payload, dict):
            payload = next((payload[name] for name in ("error", "message", "detail") if payload.get(name)), None)
    if payload is None or isinstance(payload, dict):
        return ""
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return text.encode("utf-8", "replace").decode()[:TEXT_CHARS_MAX]
