"""GET /health: this process answers. GET /ready: it can also serve calls, because its log and a worker can be used.

Neither needs a key, and neither says anything about a tenant. Of several pools one is enough: the front can serve its
calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dispatcher.model.facts import WorkerSet
from functions.http_api.callers import context_of

FRESH_S = 1.0
"""The fleet is read at most once in this time, however often /ready is called."""
PATIENCE_S = 2.0
"""If the fleet cannot be read in this time, the gate is not ready. (While no process leads, a read takes longer.)"""


async def health(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    """Answer 200 if the log of a pool can be read and the pool has a worker that serves or swaps its model; otherwise
    503, with what is missing. The answer names every pool, with its workers by state."""
    pools = await context_of(request).pools.workers(FRESH_S, PATIENCE_S)
    if all(workers is None for workers in pools.values()):
        return _not_ready({"table": "unavailable"}, "The gate's table cannot be read.")
    found = {"table": "ok", "pools": {name: _pool(workers) for name, workers in pools.items()}}
    if not any(_can_serve(workers) for workers in pools.values() if workers is not None):
        return _not_ready(found, f"{_pools_subject(list(pools))} no serving worker.")
    return JSONResponse({"status": "ready", **found})


def _pool(workers: Sequence[WorkerSet] | None) -> dict[str, Any]:
    if workers is None:
        return {"log": "unavailable"}
    return {"workers": dict(Counter(worker.state for worker in workers))}


def _pools_subject(names: Sequence[str]) -> str:
    return f"The pool {names[0]!r} has" if len(names) == 1 else f"The pools {', '.join(map(repr, names))} have"


def _can_serve(workers: Sequence[WorkerSet]) -> bool:
    return any(worker.state == "serving" or _may_be_swapping(worker) for worker in workers)


def _may_be_swapping(worker: WorkerSet) -> bool:
    """Return whether the worker may serve again soon: a worker of several models drains before each swap."""
    return worker.state == "draining" and len(worker.models) > 1


def _not_ready(found: dict[str, Any], reason: str) -> Response:
    return JSONResponse({"status": "not ready", "reason": reason, **found}, 503, headers={"retry-after": "1"})
