"""What an error of the server means for the request. normal/faults.py finds its status and its text. Pure.

| the server's answer | error |
| --- | --- |
| 400, 413, 422 | the request's own fault: `context_length_exceeded` if code or text says so, else `invalid_request` |
| 429, 503, 529 | `engine_overloaded`, with the status and the Retry-After (service/health) |
| anything else | `generation_failed`: the gate tries again |

A tenant gets the server's text for its own faults only, without keys and addresses: any other text may show how the
service is built. Each error has the server's status, and its Retry-After.
"""

from __future__ import annotations

import re

from gpu_worker.engines.interface import EngineError, PromptTooLong
from gpu_worker.engines.openai.normal.faults import Fault, fault_of_body

OWN_FAULTS = frozenset({400, 413, 422})
OVERLOADED = frozenset({429, 503, 529})
_TOO_LONG = re.compile(
    r"context.{0,3}(length|size|window)|maximum.{0,20}(length|tokens)|too long|max_model_len", re.IGNORECASE
)


def failed(reason: str, status: int | None = None, retry_after_s: float | None = None) -> EngineError:
    message = f"the engine failed on this request: {reason}"
    return EngineError("generation_failed", message, status=status, retry_after_s=retry_after_s)


def error_of_status(status: int, body: bytes, retry_after_s: float | None = None) -> EngineError:
    """Return the error of an HTTP error. `body`: as much of it as was read."""
    return error_of_fault(fault_of_body(status, body), retry_after_s)


def error_of_fault(fault: Fault, retry_after_s: float | None = None) -> EngineError:
    """Return the error of a fault that the server reports, with an HTTP status or within an answer."""
    status = fault.status
    if status in OWN_FAULTS:
        if fault.is_too_long or _TOO_LONG.search(fault.text):
            return PromptTooLong(fault.text or "the prompt is too long for the model", status=status)
        return EngineError("invalid_request", fault.text or "the engine refused the request as invalid", status=status)
    if status in OVERLOADED:
        message = "the engine takes no more requests for now"
        return EngineError("engine_overloaded", message, status=status, retry_after_s=retry_after_s)
    return failed("it reported an error", status, retry_after_s)
