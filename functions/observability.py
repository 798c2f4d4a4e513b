"""Logger and Metrics of all functions. No log line and no metric holds a prompt, an answer or a key."""

from __future__ import annotations

from collections.abc import Mapping

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from dispatcher.model.fleet import FleetLoad, PoolDelays, ScaleReport
from dispatcher.processes.metrics_namespace import SERVICE, metrics_namespace

logger = Logger(service=SERVICE, log_uncaught_exceptions=False)
metrics = Metrics(namespace=metrics_namespace(), service=SERVICE)


def count(name: str, value: float = 1.0, unit: MetricUnit = MetricUnit.Count) -> None:
    metrics.add_metric(name=name, unit=unit, value=value)


def publish_load(pool: str, load: FleetLoad) -> None:
    """Publish the workers that serve, by pool, and the waiting calls, by pool and tier. Zeros are published too."""
    _publish({"pool": pool}, {"workers_running": load.ready})
    for tier, calls in load.waiting.items():
        _publish({"pool": pool, "tier": tier}, {"waiting": calls})


def publish_delays(pool: str, delays: PoolDelays) -> None:
    """Publish how late the log is, by pool, and how long the oldest call waits, by pool and tier. Zeros too."""
    _publish({"pool": pool}, {"overdue_s": delays.overdue_s}, MetricUnit.Seconds)
    for tier, wait_s in delays.oldest_wait_s.items():
        _publish({"pool": pool, "tier": tier}, {"oldest_wait_s": wait_s}, MetricUnit.Seconds)


def publish_scaling(pool: str, report: ScaleReport) -> None:
    """Publish by pool whether scaling failed, and the workers that the pool should have, unless that is unknown."""
    wanted = {} if report.wanted is None else {"workers_wanted": report.wanted}
    _publish({"pool": pool}, {"scaling_failed": int(bool(report.problem)), **wanted})


def _publish(dimensions: Mapping[str, str], values: Mapping[str, float], unit: MetricUnit = MetricUnit.Count) -> None:
    """Write one record in CloudWatch's embedded metric format."""
    record = EphemeralMetrics(namespace=metrics_namespace(), service=SERVICE)
    for name, value in dimensions.items():
        record.add_dimension(name=name, value=value)
    for name, number in values.items():
        record.add_metric(name=name, unit=unit, value=number)
    record.flush_metrics()
