"""Prometheus series of our scheduler, on the /metrics of vLLM's own server: read from the figures at each scrape.

The names are those of the worker's metrics (gpu_worker/service/metrics.py) where they mean the same. The number of
series is bounded: TENANTS_MAX tenants, those that received the most service, and of the counters the lowest and the
highest. A tenant that falls out of them has no series until it returns; `…_all` counts every tenant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import nlargest

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import EngineStats
from gpu_worker.engines.vllm.figures import KnownFigures
from gpu_worker.policies.preemption import Strategy
from gpu_worker.policies.scheduling_stats import outermost

TENANTS_MAX = 100


class TenantCollector(Collector):
    """`figures`: of each engine core by its number."""

    def __init__(self, figures: Mapping[int, KnownFigures]) -> None:
        self._figures = figures

    def describe(self) -> list[Metric]:
        """Return nothing: the engine does not run yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        known = {str(engine): stats for engine, each in self._figures.items() if (stats := each.stats()) is not None}
        if known:
            yield from _tenants(known)
            yield from _tiers(known)
            yield from _counts(known)


def _tenants(known: Mapping[str, EngineStats]) -> Iterator[Metric]:
    service = CounterMetricFamily(
        "headgate_tenant_service", "Service of a tenant, in weighted tokens.", labels=["engine", "tenant"]
    )
    tokens = CounterMetricFamily(
        "headgate_tenant_tokens", "Tokens of a tenant that were served.", labels=["engine", "tenant", "kind"]
    )
    every = CounterMetricFamily("headgate_service_all", "Service of all tenants that are known.", labels=["engine"])
    counters = GaugeMetricFamily(
        "headgate_tenant_counter", "Service over weight of a waiting tenant.", labels=["engine", "tenant"]
    )
    for engine, stats in known.items():
        every.add_metric([engine], sum(got.service for got in stats.tenants.values()))
        most = nlargest(TENANTS_MAX, stats.tenants.items(), key=lambda item: (item[1].service, item[0]))
        for tenant, got in sorted(most):
            service.add_metric([engine, tenant], got.service)
            tokens.add_metric([engine, tenant, "input"], got.input_tokens)
            tokens.add_metric([engine, tenant, "output"], got.output_tokens)
        for tenant, counter in outermost(stats.gauges.counters, TENANTS_MAX).items():
            counters.add_metric([engine, tenant], counter)
    yield from (service, tokens, every, counters)


def _tiers(known: Mapping[str, EngineStats]) -> Iterator[Metric]:
    waiting = GaugeMetricFamily("headgate_requests_waiting", "Waiting requests.", labels=["engine", "tier"])
    running = GaugeMetricFamily("headgate_requests_running", "Requests in the batch.", labels=["engine", "tier"])
    difference = GaugeMetricFamily(
        "headgate_service_difference", "Largest difference between two waiting tenants of a tier.", labels=["engine"]
    )
    bound = GaugeMetricFamily(
        "headgate_service_difference_bound", "Bound of that difference; 0: none.", labels=["engine"]
    )
    for engine, stats in known.items():
        for tier, gauge in stats.gauges.tiers.items():
            waiting.add_metric([engine, tier.value], gauge.waiting)
            running.add_metric([engine, tier.value], gauge.running)
        difference.add_metric([engine], stats.gauges.difference)
        bound.add_metric([engine], stats.gauges.difference_bound)
    yield from (waiting, running, difference, bound)


def _counts(known: Mapping[str, EngineStats]) -> Iterator[Metric]:
    preemptions = CounterMetricFamily(
        "headgate_preemptions", "Requests evicted for waiting ones.", labels=["engine", "strategy", "tier"]
    )
    native = CounterMetricFamily("headgate_native_evictions", "Evictions by vLLM itself.", labels=["engine"])
    wrong = CounterMetricFamily("headgate_wrong_fields", "Fields that could not be read.", labels=["engine"])
    for engine, stats in known.items():
        for strategy in Strategy:
            for tier in Tier:
                count = stats.counts.preemptions[strategy, tier]
                preemptions.add_metric([engine, strategy.value, tier.value], count)
        native.add_metric([engine], stats.counts.native)
        wrong.add_metric([engine], stats.counts.wrong_fields)
    yield from (preemptions, native, wrong)
