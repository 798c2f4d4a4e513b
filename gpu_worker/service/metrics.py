"""What a worker tells Prometheus: read from the engine, the SLO monitor and the shedder when it is asked, kept nowhere.

Names end in their unit; counts never fall while the process lives. Labels are bounded: tiers, kinds and strategies are
few, and of tenants' counters at most TENANTS_MAX are told, those highest and those lowest, since they are what fairness
is read from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dispatcher.policies.tiers import TENANT_TIERS
from gpu_worker.engines.interface import Engine, EngineStats
from gpu_worker.policies.preemption.costs import Strategy
from gpu_worker.policies.scheduling_stats import ObservedCosts, SchedulingGauges, SchedulingStats
from gpu_worker.policies.slo.monitor import Slo
from gpu_worker.service.executions import Executions
from gpu_worker.service.slo.watch import SloWatch

TENANTS_MAX = 100
PERCENTILES = (0.5, 0.99)

Samples = Mapping[Any, float]
"""By a tuple of labels' values; () for the only one."""


def make_registry(executions: Executions) -> CollectorRegistry:
    """Of one worker, and nobody else's figures in it."""
    registry = CollectorRegistry()
    registry.register(WorkerCollector(executions.engine, executions.watch))
    return registry


class WorkerCollector(Collector):
    def __init__(self, engine: Engine, watch: SloWatch) -> None:
        self._engine = engine
        self._watch = watch

    def describe(self) -> list[Metric]:
        """Nothing: asking the engine for names before it runs would be asking too early."""
        return []

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        yield from _preemption(stats.counts)
        yield from _queues(stats, stats.gauges)
        yield from _fairness(stats.gauges)
        yield from _space(stats.gauges)
        yield from _promises(self._watch)
        yield from _incidents(stats.counts, self._watch)
        restarts = getattr(self._engine, "restarts", 0)  # of an engine that is watched (engines/supervised.py)
        yield _count("engine_restarts", "Times that the engine was started again.", restarts)


def _preemption(counts: SchedulingStats) -> Iterator[Metric]:
    # Copies: an engine may count in a thread of its own. Zeros: a rate needs a first value to rise from.
    preemptions, costs = dict(counts.preemptions), dict(counts.costs)
    kinds = [(strategy, tier) for strategy in Strategy for tier in TENANT_TIERS]
    evicted = {(strategy.value, tier.value): preemptions.get((strategy, tier), 0) for strategy, tier in kinds}
    yield _count("preemptions", "Running requests evicted for waiting ones.", evicted, "strategy", "tier")
    yield _count("native_evictions", "Evictions by the engine itself, for running requests that grew.", counts.native)
    yield _count("resumed", "Evicted requests that came back.", counts.resumed)
    yield _count("preemptions_exhausted", "Requests ended, evicted as often as may be.", counts.exhausted)
    yield _count("recomputed_tokens", "Tokens computed again after an eviction.", counts.recomputed_tokens)
    yield _count("swapped_out_bytes", "KV cache copied to host memory.", counts.swapped_out_bytes)
    yield _count("swapped_in_bytes", "KV cache copied back.", counts.swapped_in_bytes)
    seen = {(strategy.value,): costs.get(strategy, ObservedCosts()) for strategy in Strategy}
    measured = {labels: each.measured for labels, each in seen.items()}
    yield _count("preemption_costs", "Preemptions whose cost was measured.", measured, "strategy")
    predicted = {labels: each.predicted_s for labels, each in seen.items()}
    yield _count("preemption_predicted_seconds", "What the measured ones were thought to cost.", predicted, "strategy")
    took = {labels: each.measured_s for labels, each in seen.items()}
    yield _count("preemption_measured_seconds", "What they cost.", took, "strategy")


def _queues(stats: EngineStats, now: SchedulingGauges) -> Iterator[Metric]:
    waiting = {(tier.value,): float(each.waiting) for tier, each in now.tiers.items()}
    running = {(tier.value,): float(each.running) for tier, each in now.tiers.items()}
    yield _now("requests_waiting", "Requests in the engine's queue.", waiting or stats.waiting, "tier")
    yield _now("requests_running", "Requests in the engine's batch.", running or stats.running, "tier")
    yield _now("kv_use_ratio", "Share of the KV cache in use.", stats.kv_use)


def _fairness(now: SchedulingGauges) -> Iterator[Metric]:
    counters = {(tenant,): value for tenant, value in outermost(now.counters).items()}
    about = f"Service over weight of tenants that wait; at most {TENANTS_MAX}, the lowest and the highest."
    yield _now("tenant_counter", about, counters, "tenant")
    yield _now("service_difference", "Most by which two tenants of a tier that wait differ.", now.difference)
    yield _now("service_difference_bound", "What VTC's Lemma 4.3 allows it to be; 0: none.", now.difference_bound)


def outermost(counters: Mapping[str, float], tenants_max: int = TENANTS_MAX) -> dict[str, float]:
    """Of more tenants than that the lowest and the highest, half and half."""
    ordered = sorted(counters.items(), key=lambda item: (item[1], item[0]))
    half = tenants_max // 2
    return dict(ordered if len(ordered) <= tenants_max else ordered[:half] + ordered[half - tenants_max :])


def _space(now: SchedulingGauges) -> Iterator[Metric]:
    yield _now("swap_space_bytes", "Host memory for swapped KV cache.", now.swap_bytes_total)
    yield _now("swap_space_used_bytes", "Of it, in use.", now.swap_bytes_used)
    yield _now("reserve_blocks", "KV blocks kept for premium.", now.reserve_blocks)
    yield _now("reserve_used_blocks", "Of them, held by premium.", now.reserve_used)


def _promises(watch: SloWatch) -> Iterator[Metric]:
    monitor, now_s = watch.monitor, watch.now_s()
    shares: dict[tuple[str, ...], float] = {}
    samples: dict[tuple[str, ...], float] = {}
    targets: dict[tuple[str, ...], float] = {}
    seconds: dict[tuple[str, ...], float] = {}
    for tier in TENANT_TIERS:
        for kind in Slo:
            labels = (tier.value, kind.value)
            attained = monitor.attainment(tier, kind, now_s)
            targets[labels], samples[labels] = monitor.settings.target(tier, kind), attained.samples
            if attained.samples:
                shares[labels] = attained.share
            for fraction in PERCENTILES:
                found = monitor.percentile_s(tier, kind, now_s, fraction)
                if found is not None:
                    seconds[*labels, f"{fraction:g}"] = found
    window = f"over the last {monitor.settings.window_s:g} s"
    yield _now("slo_attainment_ratio", f"Requests within their target, {window}.", shares, "tier", "kind")
    yield _now("slo_samples", f"Requests that it is of, {window}.", samples, "tier", "kind")
    yield _now("slo_target_seconds", "The target; infinite where there is none.", targets, "tier", "kind")
    yield _now("slo_seconds", f"By nearest rank, {window}.", seconds, "tier", "kind", "quantile")


def _incidents(counts: SchedulingStats, watch: SloWatch) -> Iterator[Metric]:
    sheds = {(tier.value,): float(watch.sheds[tier]) for tier in TENANT_TIERS}
    yield _count("sheds", "Requests turned away for the sake of higher tiers.", sheds, "tier")
    yield _now("shed_level", "0: nobody is shed; 1: background; 2: standard too.", watch.shedder.level)
    yield _count("shed_level_changes", "How often it was raised or lowered.", watch.shedder.changes)
    late = {("engine",): float(counts.expired), ("worker",): float(watch.expiries.total())}
    yield _count("deadline_expiries", "Requests ended at their deadline, by who ended them.", late, "by")


def _count(name: str, about: str, values: float | Samples, *labels: str) -> Metric:
    return _filled(CounterMetricFamily(f"headgate_{name}", about, labels=_labels(values, labels)), values)


def _now(name: str, about: str, values: float | Samples, *labels: str) -> Metric:
    return _filled(GaugeMetricFamily(f"headgate_{name}", about, labels=_labels(values, labels)), values)


def _labels(values: float | Samples, labels: tuple[str, ...]) -> tuple[str, ...]:
    """None of a single number, as of an engine that tells no tiers."""
    return labels if isinstance(values, Mapping) else ()


def _filled(family: CounterMetricFamily | GaugeMetricFamily, values: float | Samples) -> Metric:
    samples = values if isinstance(values, Mapping) else {(): float(values)}
    for labels, value in samples.items():
        family.add_metric(labels, value)
    return family
