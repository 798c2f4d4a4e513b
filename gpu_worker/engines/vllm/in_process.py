"""The tenant of a request that Python code makes itself: `LLM()` and `AsyncLLM`, where no middleware runs.

    llm = LLM(MODEL, scheduler_cls="headgate_vllm.Scheduler",
              additional_config={"headgate": {"trust_client_fields": True}})
    llm.generate(prompts, [for_tenant(SamplingParams(max_tokens=64), "acme") for _ in prompts])

The scheduler may run in another process, so the tenant travels in the request's own parameters. Their tiers, weights
and prefix groups come from the operator's file (tenants.py), if HEADGATE_TENANTS names one.

A request also gets the cache salt that the middleware would give it: vLLM's prefix cache shares nothing between tenants
outside of a group. vLLM takes a salt with a prompt and not with parameters, and hashes the prompt's blocks before the
scheduler gets the request. So the scheduler salts the request and hashes it again (`salt_prefixes`); such a prompt is
hashed twice.
"""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from gpu_worker.engines.vllm.identity import (
    TENANT_CHARS_MAX,
    TenantIdentity,
    cache_salt,
    is_tenant,
    read_entry,
    read_identity,
    write_entry,
)
from gpu_worker.engines.vllm.protocol import GROUP_ARGUMENT, IDENTITY_ARGUMENT, extra_args
from gpu_worker.engines.vllm.settings import TENANTS_VARIABLE
from gpu_worker.engines.vllm.tenants import TenantDirectory, read_tenants

_Parameters = TypeVar("_Parameters")


def for_tenant(parameters: _Parameters, tenant: str) -> _Parameters:
    """Return a copy of vLLM's sampling or pooling parameters for a request of this tenant. Raises ValueError, with one
    sentence, for what is no name of a tenant and for a wrong file."""
    if not isinstance(tenant, str) or not is_tenant(tenant):
        raise ValueError(f"{tenant!r} is not the name of a tenant (1 to {TENANT_CHARS_MAX} characters)")
    directory = _directory(os.environ.get(TENANTS_VARIABLE, ""))
    identity = TenantIdentity(tenant) if directory is None else directory.identity_of(tenant)
    found = copy.copy(parameters)
    name = "extra_args" if hasattr(found, "extra_args") else "extra_kwargs"
    ours = {IDENTITY_ARGUMENT: write_entry(identity), GROUP_ARGUMENT: identity.prefix_group or ""}
    setattr(found, name, {**(getattr(found, name) or {}), **ours})
    return found


def salt_prefixes(request: Any) -> None:
    """Give one of vLLM's requests that `for_tenant` named the salt of its tenant, or of its tenant's group. Must not
    raise: that would end vLLM's core.

    A request that the middleware named has its salt already. The settings must trust the parameters of requests.
    """
    arguments = extra_args(request)
    identity = read_entry(arguments.get(IDENTITY_ARGUMENT))
    if identity is None or read_identity(request.trace_headers) is not None:
        return
    group = arguments.get(GROUP_ARGUMENT)
    if isinstance(group, str) and is_tenant(group):
        identity = replace(identity, prefix_group=group)
    request.cache_salt = cache_salt(identity, request.cache_salt)
    request.block_hashes.clear()
    request.update_block_hashes()


@cache
def _directory(path: str) -> TenantDirectory | None:
    return read_tenants(Path(path)) if path else None
