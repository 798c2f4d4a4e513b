"""GET /v1/models: the models that workers of any pool have or can load, with context length and capabilities."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dispatcher.model.errors import StoreUnavailable, UnknownModel
from dispatcher.model.facts import WorkerSet
from dispatcher.model.fleet import common
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
    """Return the models that the tenant may use, by name."""
    by_name: dict[str, list[WorkerSet]] = {}
    for worker in with_each_model(await _workers(context_of(request).pools)):
        if tenant.models is None or worker.model in tenant.models:
            by_name.setdefault(worker.model, []).append(worker)
    return [_model(name, by_name[name]) for name in sorted(by_name)]


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
    capabilities = sorted(common(worker.capabilities for worker in workers))
    fields = {"id": name, "object": "model", "created": 0, "owned_by": "headgate"}
    return {**fields, **context, "capabilities": capabilities}
