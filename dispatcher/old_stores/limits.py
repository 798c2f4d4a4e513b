"""Limits of what each backend keeps of an invocation: sizes and times."""

from __future__ import annotations

import json
from dataclasses import replace

from dispatcher.model.errors import RequestTooLarge
from dispatcher.model.old_invocation import Invocation, Result, State

TEXT_BYTES_MAX = 350_000
"""Longest body or answer kept. An item of DynamoDB holds 400 KB with everything in it; never both texts at once."""

RETENTION_S = 24 * 3600.0
"""How long an ended invocation and its answer can be fetched, and its id is recognised as a retry."""


def checked_body(body: str | None) -> str | None:
    """Return the body. Raises RequestTooLarge if it is too long to be kept for another process to execute."""
    if body is not None and len(body.encode()) > TEXT_BYTES_MAX:
        raise RequestTooLarge(f"A request that has to wait may have at most {TEXT_BYTES_MAX} bytes.")
    return body


def fitting(ended: Invocation) -> Invocation:
    """Replace an answer that is too long by an error. The charge stays: the settlement must not fail for its size."""
    if ended.result is None or len(ended.result.body.encode()) <= TEXT_BYTES_MAX:
        return ended
    message = f"The answer is longer than {TEXT_BYTES_MAX} bytes and was not kept; stream it instead."
    error = {"message": message, "type": "server_error", "param": None, "code": "result_too_large"}
    return replace(ended, state=State.FAILED, result=Result(500, json.dumps({"error": error})))
