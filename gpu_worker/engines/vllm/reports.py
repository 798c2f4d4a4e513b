"""What our scheduler measures and reports: step times, costs of preemption predicted and observed, swap space.

The engine core is a process of its own. A few times a second its outputs carry the stats for the worker and its
/metrics, as a part of vLLM's own stats (stats_endpoint.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm.v1.request import Request

from gpu_worker.engines.copy_rates import measure_copy_rates
from gpu_worker.engines.interface import EngineStats, stats_to_json
from gpu_worker.engines.step_costs import CostTracker
from gpu_worker.policies.preemption import Eviction, Strategy

REPORT_EVERY_S = 0.25
STATS_KEY = "headgate"
"""The key of our stats among the stats of vLLM's KV connector."""


@dataclass(frozen=True, slots=True)
class HostPool:
    """Bytes of the host's pool; 0 if vLLM runs without our connector."""

    total_bytes: float = 0.0
    used_bytes: float = 0.0

    @property
    def free_bytes(self) -> float:
        return self.total_bytes - self.used_bytes


class Reports:
    """`scheduler`: ours. `sends`: whether the server hands the stats to a worker (stats_endpoint.py). Otherwise vLLM's
    own loggers would get them, and fail."""

    def __init__(self, scheduler: Any, *, sends: bool) -> None:
        self._scheduler = scheduler
        self._sends = sends
        self._sent_s = 0.0
        self._cost_tracker = CostTracker(scheduler.admission, scheduler.counts)
        self._began: dict[int, float] = {}
        self._ended_s = 0.0
        connector = scheduler.connector
        self._connector = connector if hasattr(connector, "swap_out") else None
        if self._connector is not None:
            self._calibrate_copies(self._connector.ledger)

    def swap(self) -> HostPool:
        if self._connector is None:
            return HostPool()
        usage = self._connector.usage
        return HostPool(usage.total_bytes, usage.used_bytes)

    def swap_out(self, request: Request) -> bool:
        return self._connector is not None and bool(self._connector.swap_out(request))

    def evicted(self, request: Request, strategy: Strategy, eviction: Eviction | None) -> None:
        """Note a request that is about to lose its blocks."""
        if strategy is Strategy.RECOMPUTE:
            predicted_s = None if eviction is None else eviction.predicted_s
            self._cost_tracker.begin_recompute(request.request_id, request.num_computed_tokens, predicted_s)

    def gone(self, request_id: str) -> None:
        self._cost_tracker.gone(request_id)

    def scheduled(self, output: Any) -> None:
        self._began[id(output)] = time.perf_counter()

    def ran(self, output: Any) -> None:
        """Note the time of a finished step; it began no earlier than the end of the step before."""
        now_s = time.perf_counter()
        began_s = max(self._began.pop(id(output), now_s), self._ended_s)
        self._ended_s = now_s
        if len(output.num_scheduled_tokens) == 1 or self._cost_tracker.recomputing:
            self._cost_tracker.step(now_s - began_s, _computed_tokens(output))

    def attach(self, outputs: Mapping[int, Any]) -> None:
        """Add the stats to a step's outputs every REPORT_EVERY_S, and when nothing is left to do: no later step would
        send them. Add nothing if vLLM's own stats are off."""
        if not self._sends:
            return
        carrier = next((each.scheduler_stats for each in outputs.values() if each.scheduler_stats is not None), None)
        idle = not self._scheduler.running and not len(self._scheduler.waiting)
        if carrier is None or (self._ended_s - self._sent_s < REPORT_EVERY_S and not idle):
            return
        self._sent_s = self._ended_s
        carrier.kv_connector_stats = {**(carrier.kv_connector_stats or {}), STATS_KEY: stats_to_json(self.stats())}

    def _calibrate_copies(self, ledger: Any) -> None:
        """Measure the copy rates of the GPU that this process sees, which may not be the model's."""
        scheduler = self._scheduler
        rates = measure_copy_rates()
        scheduler.admission.calibration = replace(
            scheduler.admission.calibration,
            kv_bytes_per_token=ledger.block_bytes / ledger.block_tokens,
            copy_out_bytes_per_s=rates.out_bytes_per_s,
            copy_in_bytes_per_s=rates.in_bytes_per_s,
            copy_base_s=rates.base_s,
        )

    def stats(self) -> EngineStats:
        """Return the stats as of now."""
        scheduler = self._scheduler
        counts = scheduler.counts
        if self._connector is not None:
            swapped = self._connector.usage
            counts.swapped_out_bytes, counts.swapped_in_bytes = swapped.swapped_out_bytes, swapped.swapped_in_bytes
        return EngineStats(
            waiting=len(scheduler.waiting),
            running=len(scheduler.running),
            kv_use=float(scheduler.kv_cache_manager.usage),
            tenants=scheduler.queue_policy.received,
            counts=counts,
            gauges=scheduler.gauges(),
        )


def _computed_tokens(output: Any) -> dict[str, tuple[int, int]]:
    """Return by request the tokens computed before this step, and in it."""
    starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    return {name: (starts.get(name, 0), tokens) for name, tokens in output.num_scheduled_tokens.items()}
