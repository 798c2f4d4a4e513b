"""An error as an HTTP response, and the id that every response carries."""

from __future__ import annotations

import math

from starlette.responses import JSONResponse
from starlette.types import Scope

from dispatcher.model.errors import AnsweredError

ID_HEADER = "x-request-id"
_ID = "headgate.request_id"


def request_id(scope: Scope) -> str:
    """Return the id of a request: that of its call, or a new one if it has no call. It is the same at every use."""
    if _ID not in scope:
        scope[_ID] = scope["app"].state.context.ids.new()
    found: str = scope[_ID]
    return found


def name_request(scope: Scope, call_id: str) -> None:
    """Make the id of the request's call its id, so that an error of the call carries it too."""
    scope[_ID] = call_id


def error_response(error: AnsweredError) -> JSONResponse:
    return JSONResponse(error.body(), error.status, headers=retry_after(error.retry_after_s))


def retry_after(seconds: float | None) -> dict[str, str]:
    """Return the header `Retry-After` in whole seconds; none if the time is unknown.

    It is rounded up: a caller that came back before the time would be refused again.
    """
    if seconds is None or not math.isfinite(seconds):
        return {}
    return {"retry-after": str(max(1, math.ceil(seconds)))}
