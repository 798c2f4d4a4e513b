"""The worker's Prometheus metrics, read from the engine, the SLO monitor and the shedder at each scrape.

Names end in their unit. Counts never fall while the process lives. The number of labels is bounded: there are few
tiers, kinds and strategies, and the counters of at most TENANTS_MAX tenants are reported. These are the lowest and the
highest ones, because they show the fairness.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dispatcher.policies.tiers import TENANT_TIERS
from gpu_worker.engines.interface import EngineStats, SleepableEngine
from gpu_worker.engines.supervised import SwapCounts
from gpu_worker.policies.preemption import Strategy
from gpu_worker.policies.scheduling_stats import ObservedCosts, SchedulingGauges, SchedulingStats, outermost
from gpu_worker.policies.slo import Slo
from gpu_worker.service.executions.executions import Executions
from gpu_worker.service.health.engine_health import EngineHealth
from gpu_worker.service.health.failures import FailureKind, ProbeVerdict
from gpu_worker.service.slo_watch import SloWatch

TENANTS_MAX = 100
_RETURN_REASONS = ("not_begun", "lost")
_PERCENTILES = (0.5, 0.99)

_Samples = Mapping[Any, float]
"""The values of a metric by tuple of label values; () for a metric without labels."""


def make_registry(executions: Executions) -> CollectorRegistry:
    """Make a registry with the metrics of one worker only."""
    registry = CollectorRegistry()
    registry.register(WorkerCollector(executions))
    return registry


class WorkerCollector(Collector):
    def __init__(self, executions: Executions) -> None:
        self._executions = executions
        self._engine = executions.engine
        self._watch = executions.watch

    def describe(self) -> list[Metric]:
        """Return nothing, because the engine does not run yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        yield from _preemption(stats.counts)
        yield from _queues(stats, stats.gauges)
        yield from _fairness(stats.gauges)
        yield from _space(stats.gauges)
        yield from _slo(self._watch)
        yield from _incidents(stats.counts, self._watch)
        restarts = getattr(self._engine, "restarts", 0)  # of a supervised engine (engines/supervised.py)
        yield from _reports(self._executions)
        yield from _health(self._executions.health)
        yield _counter("engine_restarts", "Times that the engine was started again.", restarts)
        yield from _models(self._engine.facts.model, getattr(self._engine, "swaps", SwapCounts()))
        yield from _asleep(getattr(self._engine, "asleep", {}))


def _models(loaded: str, swaps: SwapCounts) -> Iterator[Metric]:
    yield _gauge("model_loaded", "1 for the loaded model.", {(loaded,): 1.0}, "model")
    outcomes = {("done",): swaps.done, ("failed",): swaps.failed}
    yield _counter("model_swaps", "Swaps of the model that the gate ordered.", outcomes, "outcome")
    yield _gauge("model_swap_seconds", "Seconds of the last swap, without the wait for running requests.", swaps.last_s)
    yield _gauge("model_wake_seconds", "Seconds of the last swap to a sleeping model that woke up.", swaps.wake_s)
    sleeps = {("done",): swaps.sleeps, ("failed",): swaps.sleeps_failed, ("evicted",): swaps.evicted}
    about = "Engines that were put to sleep, that were stopped instead, and that were stopped to make room for others."
    yield _counter("model_sleeps", about, sleeps, "outcome")
    wakes = {("done",): swaps.wakes, ("failed",): swaps.wakes_failed}
    yield _counter("model_wakes", "Wake-ups; after a failed one the engine is started instead.", wakes, "outcome")


def _asleep(asleep: Mapping[str, SleepableEngine]) -> Iterator[Metric]:
    held = {(model,): float(engine.sleep_bytes or 0) for model, engine in asleep.items()}
    yield _gauge("model_asleep_bytes", "Host memory of each sleeping model.", held, "model")


def _preemption(counts: SchedulingStats) -> Iterator[Metric]:
    # Copies, because an engine may count in a thread of its own. Zeros, because a rate needs a first value.
    preemptions, costs = dict(counts.preemptions), dict(counts.costs)
    kinds = [(strategy, tier) for strategy in Strategy for tier in TENANT_TIERS]
    evicted = {(strategy.value, tier.value): preemptions.get((strategy, tier), 0) for strategy, tier in kinds}
    yield _counter("preemptions", "Running requests evicted for waiting ones.", evicted, "strategy", "tier")
    yield _counter(
        "native_evictions", "Evictions by the engine itself, to give blocks to a running request.", counts.native
    )
    yield _counter("resumed", "Evicted requests that were resumed.", counts.resumed)
    yield _counter(
        "preemptions_exhausted", "Requests ended because they were preempted as often as allowed.", counts.exhausted
    )
    yield _counter("recomputed_tokens", "Tokens computed again after an eviction.", counts.recomputed_tokens)
    yield _counter("swapped_out_bytes", "KV cache copied to host memory.", counts.swapped_out_bytes)
    yield _counter("swapped_in_bytes", "KV cache copied back.", counts.swapped_in_bytes)
    seen = {(strategy.value,): costs.get(strategy, ObservedCosts()) for strategy in Strategy}
    measured = {labels: each.measured for labels, each in seen.items()}
    yield _counter("preemption_costs", "Preemptions with a measured cost.", measured, "strategy")
    predicted = {labels: each.predicted_s for labels, each in seen.items()}
    yield _counter("preemption_predicted_seconds", "Predicted cost of those preemptions.", predicted, "strategy")
    seconds = {labels: each.measured_s for labels, each in seen.items()}
    yield _counter("preemption_measured_seconds", "Measured cost of those preemptions.", seconds, "strategy")


def _queues(stats: EngineStats, gauges: SchedulingGauges) -> Iterator[Metric]:
    waiting = {(tier.value,): float(each.waiting) for tier, each in gauges.tiers.items()}
    running = {(tier.value,): float(each.running) for tier, each in gauges.tiers.items()}
    yield _gauge("requests_waiting", "Requests in the engine's queue.", waiting or stats.waiting, "tier")
    yield _gauge("requests_running", "Requests in the engine's batch.", running or stats.running, "tier")
    yield _gauge("kv_use_ratio", "Share of the KV cache in use.", stats.kv_use)


def _fairness(gauges: SchedulingGauges) -> Iterator[Metric]:
    counters = {(tenant,): value for tenant, value in outermost(gauges.counters, TENANTS_MAX).items()}
    about = f"Service over weight of waiting tenants; at most {TENANTS_MAX}, the lowest and the highest."
    yield _gauge("tenant_counter", about, counters, "tenant")
    yield _gauge("service_difference", "Largest difference between two waiting tenants of a tier.", gauges.difference)
    yield _gauge(
        "service_difference_bound", "Bound of that difference by VTC's Lemma 4.3; 0: none.", gauges.difference_bound
    )


def _space(gauges: SchedulingGauges) -> Iterator[Metric]:
    yield _gauge("swap_space_bytes", "Host memory for swapped KV cache.", gauges.swap_bytes_total)
    yield _gauge("swap_space_used_bytes", "Host memory for swapped KV cache in use.", gauges.swap_bytes_used)
    yield _gauge("reserve_blocks", "KV blocks kept for premium.", gauges.reserve_blocks)
    yield _gauge("reserve_used_blocks", "KV blocks kept for premium that premium holds.", gauges.reserve_used)


def _slo(watch: SloWatch) -> Iterator[Metric]:
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
            for fraction in _PERCENTILES:
                found = monitor.percentile_s(tier, kind, now_s, fraction)
                if found is not None:
                    seconds[*labels, f"{fraction:g}"] = found
    window = f"over the last {monitor.settings.window_s:g} s"
    yield _gauge("slo_attainment_ratio", f"Requests within their target, {window}.", shares, "tier", "kind")
    yield _gauge("slo_samples", f"Requests that the attainment counts, {window}.", samples, "tier", "kind")
    yield _gauge("slo_target_seconds", "The target; infinite if there is none.", targets, "tier", "kind")
    yield _gauge("slo_seconds", f"Percentiles by nearest rank, {window}.", seconds, "tier", "kind", "quantile")


def _incidents(counts: SchedulingStats, watch: SloWatch) -> Iterator[Metric]:
    sheds = {(tier.value,): float(watch.sheds[tier]) for tier in TENANT_TIERS}
    yield _counter("sheds", "Requests shed to protect more urgent tiers.", sheds, "tier")
    yield _gauge("shed_level", "0: no tier is shed; 1: background; 2: standard too.", watch.shedder.level)
    yield _counter("shed_level_changes", "How often the shed level was raised or lowered.", watch.shedder.changes)
    late = {("engine",): float(counts.expired), ("worker",): float(watch.expiries.total())}
    yield _counter("deadline_expiries", "Requests ended at their deadline, by the part that ended them.", late, "by")
    yield _counter("wrong_fields", "Fields of the dispatcher that the engine could not read.", counts.wrong_fields)


def _reports(executions: Executions) -> Iterator[Metric]:
    yield _gauge("outbox_reports", "Ends of attempts that the log does not have yet.", len(executions.outbox))
    returned = {(reason,): float(executions.fenced[reason]) for reason in _RETURN_REASONS}
    about = "Attempts returned to the gate because their order did not arrive, by reason."
    yield _counter("attempts_returned", about, returned, "reason")


def _health(health: EngineHealth) -> Iterator[Metric]:
    failures = {(kind.value,): float(health.failures[kind]) for kind in FailureKind}
    yield _counter("engine_errors", "Requests that the engine ended with an error, by kind.", failures, "kind")
    verdicts = {(verdict.value,): float(health.verdicts[verdict]) for verdict in ProbeVerdict}
    yield _counter("engine_probes", "Probes of the engine after failures, by what they found.", verdicts, "verdict")
    yield _gauge("engine_sick", "1 while probes of the engine fail: the worker takes no work.", float(health.is_sick))
    yield _gauge(
        "slots_open", "Slots that the worker offers; fewer while its engine is overloaded.", health.slots_open()
    )


def _counter(name: str, about: str, values: float | _Samples, *labels: str) -> Metric:
    return _fill_family(CounterMetricFamily(f"headgate_{name}", about, labels=_labels(values, labels)), values)


def _gauge(name: str, about: str, values: float | _Samples, *labels: str) -> Metric:
    return _fill_family(GaugeMetricFamily(f"headgate_{name}", about, labels=_labels(values, labels)), values)


def _labels(values: float | _Samples, labels: tuple[str, ...]) -> tuple[str, ...]:
    """Return no labels for a single number, which an engine without tiers reports."""
    return labels if isinstance(values, Mapping) else ()


def _fill_family(family: CounterMetricFamily | GaugeMetricFamily, values: float | _Samples) -> Metric:
    samples = values if isinstance(values, Mapping) else {(): float(values)}
    for labels, value in samples.items():
        family.add_metric(labels, value)
    return family
