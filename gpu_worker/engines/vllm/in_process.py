"""The tenant of a request that Python code makes itself: `LLM()` and `AsyncLLM`, where no middleware runs.

    llm = LLM(MODEL, scheduler_cls="headgate_vllm.Scheduler",
              additional_config={"headgate": {"trust_client_fields": True}})
    llm.generate(prompts, [for_tenant(SamplingParams(max_tokens=64), "acme") for _ in prompts])

The scheduler may run in another process, so the tenant travels in the request's own parameters. Their tiers and weights
come from the operator's file (tenants.py), if HEADGATE_TENANTS names one.
"""

from __future__ import annotations

import copy
import os
from functools import cache
from pathlib import Path
from typing import TypeVar

from gpu_worker.engines.vllm.identity import TENANT_CHARS_MAX, TenantIdentity, is_tenant, write_entry
from gpu_worker.engines.vllm.protocol import IDENTITY_ARGUMENT
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
    setattr(found, name, {**(getattr(found, name) or {}), IDENTITY_ARGUMENT: write_entry(identity)})
    return found


@cache
def _directory(path: str) -> TenantDirectory | None:
    return read_tenants(Path(path)) if path else None
