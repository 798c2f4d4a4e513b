"""Turns a work order into a request for the engine."""

from __future__ import annotations

from dispatcher.model.worker_protocol import WorkOrder
from gpu_worker.engines.interface import EngineRequest


def engine_request(order: WorkOrder, now: float) -> EngineRequest:
    """Return the engine's request for `order`. `now` is in Unix seconds, by the same clock as `order.deadline_at`.

    The tenant's name is put before the application's name. Policies learn from the requests of an application, and
    requests of one tenant must not affect another tenant that uses the same application name.
    """
    return EngineRequest(
        request_id=order.execution,
        tenant=order.tenant,
        body=order.body,
        max_tokens=order.max_tokens,
        expected_tokens=order.expected_tokens,
        endpoint=order.endpoint,
        choices=order.choices,
        weight=order.weight,
        tier=order.tier,
        app=f"{order.tenant}/{order.app}" if order.app else "",
        stage=order.stage,
        interaction=order.interaction,
        timeout_s=max(0.0, order.deadline_at - now),
        cache_salt=order.cache_salt,
    )
