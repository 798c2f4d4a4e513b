"""The engine's request for a work order."""

from __future__ import annotations

from dispatcher.model.worker_protocol import WorkOrder
from gpu_worker.engines.interface import EngineRequest


def engine_request(order: WorkOrder, prompt: str, now: float) -> EngineRequest:
    """Return what the engine generates for `order`. `now` is Unix seconds, by the clock of `order.deadline_at`.

    The application's name gets the tenant's in front. Policies learn from the requests of an application; what they
    learn from one tenant must not move the requests of another tenant that uses the same name.
    """
    return EngineRequest(
        request_id=order.execution,
        tenant=order.tenant,
        prompt=prompt,
        max_tokens=order.max_tokens,
        weight=order.weight,
        temperature=order.temperature,
        seed=order.seed,
        stop=order.stop,
        tier=order.tier,
        app=f"{order.tenant}/{order.app}" if order.app else "",
        stage=order.stage,
        interaction=order.interaction,
        timeout_s=max(0.0, order.deadline_at - now),
        cache_salt=order.cache_salt,
    )
