"""What our scheduler measures and reports: step times, costs of preemption predicted and observed, swap space.

The engine core is a process of its own. Its outputs carry reports (figures.py) for the worker and for /metrics, as a
part of vLLM's own stats (stats_logger.py). What a report costs the scheduler's thread is bounded: it has the counts and
gauges, or at most TENANTS_MAX tenants that changed, in plain values that vLLM encodes in another thread. Counts and
gauges follow REPORT_EVERY_S apart, and after them the tenants, PART_EVERY_S apart while any are left.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm.v1.request import Request

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.copy_rates import measure_copy_rates
from gpu_worker.engines.interface import EngineStats
from gpu_worker.engines.step_costs import CostTracker
from gpu_worker.engines.vllm.figures import make_report
from gpu_worker.policies.admission import RESERVED_FOR
from gpu_worker.policies.changed_tenants import ChangedTenants
from gpu_worker.policies.preemption import Eviction, Strategy
from gpu_worker.policies.scheduling_stats import SchedulingGauges, scheduling_gauges

REPORT_EVERY_S = 0.25
PART_EVERY_S = 0.1
TENANTS_MAX = 16
TENANTS_IDLE_MAX = 512
"""Tenants of a report when nothing waits or runs: no request waits for it."""
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
    """`scheduler`: ours. `sends`: whether the server has the logger that takes the reports (stats_logger.py). Otherwise
    vLLM's own loggers would get them, and fail."""

    def __init__(self, scheduler: Any, *, sends: bool) -> None:
        self._scheduler = scheduler
        self._sends = sends
        self._sent_s = 0.0
        self._changes = ChangedTenants(scheduler.queue_policy)
        self._now_sent_s = 0.0
        """When the last counts and gauges were sent."""
        self._tenants_are_next = False
        """Whether the last report had counts and gauges alone."""
        self._tenants_left = False
        """Whether the last report left tenants to the next one."""
        self.has_unsent = False
        """Whether the engine is idle and reports are left: the scheduler then asks for another step."""
        self._cost_tracker = CostTracker(scheduler.admission, scheduler.counts)
        self._began: dict[int, float] = {}
        self._ended_s = 0.0
        self._connector = _find_swap(scheduler.connector)
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
        """Add a report to a step's outputs if it is time for one, and always if nothing is left to do: no later step
        would carry it. Add nothing if vLLM's own stats are off."""
        if not self._sends:
            return
        idle = not self._scheduler.running and not len(self._scheduler.waiting)
        every_s = PART_EVERY_S if self._tenants_left else REPORT_EVERY_S
        if self._ended_s - self._sent_s < every_s and not idle:
            return
        carrier = next((each.scheduler_stats for each in outputs.values() if each.scheduler_stats is not None), None)
        if carrier is None:
            return
        self._sent_s = self._ended_s
        report = self._next_report(idle=idle)
        self.has_unsent = idle and self._tenants_left
        carrier.kv_connector_stats = {**(carrier.kv_connector_stats or {}), STATS_KEY: report}

    def _next_report(self, *, idle: bool) -> dict[str, Any]:
        """Return counts and gauges, or tenants: a step pays for one of them, and only an idle engine for both. Where a
        step takes longer than REPORT_EVERY_S, they take turns."""
        now = None
        if idle or (not self._tenants_are_next and self._ended_s - self._now_sent_s >= REPORT_EVERY_S):
            self._now_sent_s = self._ended_s
            now = self._now()
        if now is not None and not self._tenants_left:
            self._changes.begin_round()
        self._tenants_are_next = now is not None and not idle
        if self._tenants_are_next:
            self._tenants_left = True
            return make_report((), now)
        tenants = self._changes.take(TENANTS_IDLE_MAX if idle else TENANTS_MAX)
        self._tenants_left = not self._changes.is_done
        return make_report(tenants, now)

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

    def _now(self) -> EngineStats:
        """Return the counts and the gauges as of now; the tenants are in the reports."""
        scheduler = self._scheduler
        counts = scheduler.counts
        if self._connector is not None:
            swapped = self._connector.usage
            counts.swapped_out_bytes, counts.swapped_in_bytes = swapped.swapped_out_bytes, swapped.swapped_in_bytes
        sizes = len(scheduler.waiting), len(scheduler.running), float(scheduler.kv_cache_manager.usage)
        return EngineStats(*sizes, {}, counts, self._gauges())

    def _gauges(self) -> SchedulingGauges:
        scheduler, policy, swap = self._scheduler, self._scheduler.queue_policy, self.swap()
        blocks: Counter[Tier] = Counter()
        if scheduler.admission.settings.premium_reserve:
            for tier in RESERVED_FOR:
                blocks[tier] = scheduler._kv_budget().blocks_held_by({tier})
        blocks_total = scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1  # vLLM keeps one block for padding
        return scheduling_gauges(
            scheduler.admission,
            running={tier: policy.running_in(tier) for tier in Tier},
            blocks=blocks,
            blocks_total=blocks_total,
            pool_tokens=blocks_total * scheduler.block_size,
            context_tokens=scheduler.max_model_len,
            swap_bytes_total=swap.total_bytes,
            swap_bytes_used=swap.used_bytes,
            with_counters=False,
        )


def _find_swap(connector: Any) -> Any:
    """Return the connector that swaps: vLLM's only one, or one of several (MultiConnector); None if there is none."""
    several = getattr(connector, "sub_connectors", (connector,))
    return next((each for each in several if hasattr(each, "swap_out")), None)


def _computed_tokens(output: Any) -> dict[str, tuple[int, int]]:
    """Return by request the tokens computed before this step, and in it."""
    starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    return {name: (starts.get(name, 0), tokens) for name, tokens in output.num_scheduled_tokens.items()}
