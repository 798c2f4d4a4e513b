"""What the fleet serves: GET /v1/models, GET /ready, GET /health.

GET /v1/models: the models that workers of any pool have or can load, with context length and capabilities, and the
adapters of these models that the tenant may use.

GET /health: this process answers. GET /ready: it can also serve calls, because its log and a worker can be used.
Neither needs a key, and neither says anything about a tenant. Of several pools one is enough: the front can serve its
calls.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dispatcher.model.errors import StoreUnavailable, UnknownModel
from dispatcher.model.facts import WorkerSet
from dispatcher.model.fleet import ADAPTER_PREFIX, adapters_of, common_capabilities
from dispatcher.model.tenants import Tenant
from dispatcher.operations.pools import Pools, with_each_model
from functions.http_api.callers import context_of, tenant_of


async def list_models(request: Request) -> Response:
    return JSONResponse({"object": "list", "data": await _models(request, await tenant_of(request))})


async def get_model(request: Request) -> Response:
    name = request.path_params["name"]
    for model in await _models(request, await tenant_of(request)):
        if model["id"] == name:
            return JSONResponse(model)
    raise UnknownModel(name)


async def _models(request: Request, tenant: Tenant) -> list[dict[str, Any]]:
    """Return the models that the tenant may use, and then their adapters, each by name."""
    by_name: dict[str, list[WorkerSet]] = {}
    for worker in with_each_model(await _workers(context_of(request).pools)):
        by_name.setdefault(worker.model, []).append(worker)
    models = [_model(name, by_name[name]) for name in sorted(by_name) if tenant.may_use(name)]
    return [*models, *_adapters(by_name, tenant, {model["id"] for model in models})]


def _adapters(by_name: dict[str, list[WorkerSet]], tenant: Tenant, models: set[str]) -> list[dict[str, Any]]:
    """Return the tenant's adapters. `parent` is vLLM's name for the model of an adapter; `models`: names that count
    before those of adapters."""
    found: dict[str, dict[str, Any]] = {}
    for name in sorted(by_name):
        common = common_capabilities(worker.capabilities for worker in by_name[name])
        for adapter in adapters_of(common).intersection(tenant.adapters) - models:
            found.setdefault(adapter, {**_model(name, by_name[name]), "id": adapter, "parent": name})
    return [found[adapter] for adapter in sorted(found)]


async def _workers(pools: Pools) -> list[WorkerSet]:
    """Return the workers of all pools that can be read. Raises StoreUnavailable if no pool can."""
    read = await asyncio.gather(*(pool.fleet.workers() for pool in pools), return_exceptions=True)
    errors = [each for each in read if isinstance(each, BaseException)]
    if errors and (len(errors) == len(read) or not all(isinstance(each, StoreUnavailable) for each in errors)):
        raise errors[0]
    return [worker for each in read if not isinstance(each, BaseException) for worker in each]


def _model(name: str, workers: Sequence[WorkerSet]) -> dict[str, Any]:
    """Describe a model. The gate may send a request to any of its workers, so what counts is what all of them offer.

    `max_model_len` is vLLM's name for the context length in tokens. It is left out if no worker reports it.
    """
    lengths = [worker.context_tokens for worker in workers if worker.context_tokens]
    context = {"max_model_len": min(lengths), "context_length": min(lengths)} if lengths else {}
    common = common_capabilities(worker.capabilities for worker in workers)
    capabilities = sorted(each for each in common if not each.startswith(ADAPTER_PREFIX))
    fields = {"id": name, "object": "model", "created": 0, "owned_by": "headgate"}
    return {**fields, **context, "capabilities": capabilities}


_FRESH_S = 1.0
"""The fleet is read at most once in this time, however often /ready is called."""
PATIENCE_S = 2.0
"""If the fleet cannot be read in this time, the gate is not ready. (While no process leads, a read takes longer.)"""


async def health(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    """Answer 200 if the log of a pool can be read and the pool has a worker that serves or swaps its model; otherwise
    503, with what is missing. The answer names every pool, with its workers by state."""
    pools = await context_of(request).pools.workers(_FRESH_S, PATIENCE_S)
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
