"""GET /health: this process answers. GET /ready: it can also serve calls, because its log and a worker can be used.

Neither needs a key, and neither says anything about a tenant.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.facts import WorkerSet
from functions.http_api.callers import context_of

FRESH_S = 1.0
"""The fleet is read at most once in this time, however often /ready is called."""
PATIENCE_S = 2.0
"""If the fleet cannot be read in this time, the gate is not ready. (While no process leads, a read takes longer.)"""


async def health(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    """Answer 200 if the log can be read and the pool has a worker that serves or swaps its model; otherwise 503, with
    what is missing."""
    context = context_of(request)
    try:
        workers = await context.fleet.read_within(FRESH_S, PATIENCE_S)
    except StoreUnavailable:
        return _not_ready({"table": "unavailable"}, "The gate's table cannot be read.")
    states = Counter(worker.state for worker in workers)
    found = {"table": "ok", "pools": {context.settings.shard: {"workers": dict(states)}}}
    if not any(worker.state == "serving" or _may_be_swapping(worker) for worker in workers):
        return _not_ready(found, f"The pool {context.settings.shard!r} has no serving worker.")
    return JSONResponse({"status": "ready", **found})


def _may_be_swapping(worker: WorkerSet) -> bool:
    """Return whether the worker may serve again soon: a worker of several models drains before each swap."""
    return worker.state == "draining" and len(worker.models) > 1


def _not_ready(found: dict[str, Any], reason: str) -> Response:
    return JSONResponse({"status": "not ready", "reason": reason, **found}, 503, headers={"retry-after": "1"})
