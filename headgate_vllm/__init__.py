"""headgate's scheduler for a bare vLLM server: the distribution `headgate-vllm`. It imports nothing until it is used.

    vllm serve MODEL --scheduler-cls headgate_vllm.Scheduler --middleware headgate_vllm.Tenants

`Scheduler` switches fair sharing on, and checks vLLM's version. `Tenants` names the tenant of each request, by the file
in HEADGATE_TENANTS. What cannot work ends the start of the server with one sentence. In Python, without a server,
`for_tenant(parameters, tenant)` names the tenant of a request.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Scheduler", "Tenants", "for_tenant"]


def __getattr__(name: str) -> Any:
    """Return one of the names. Raises ValueError, with one sentence, for a wrong file of tenants."""
    if name == "Scheduler":
        from gpu_worker.engines.vllm.scheduler_choice import ChosenScheduler

        return ChosenScheduler
    if name == "Tenants":
        from gpu_worker.engines.vllm.tenants import TenantMiddleware, tenants_of_start

        tenants_of_start()  # vLLM gets this name at its start, and makes the object only with the first request
        return TenantMiddleware
    if name == "for_tenant":
        from gpu_worker.engines.vllm.in_process import for_tenant

        return for_tenant
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
