"""The object that `headgate simulate --json` prints for a run, or for the runs of several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from headgate.simulator.measures.collector import TenantMeasures
from headgate.simulator.measures.percentiles import Percentiles
from headgate.simulator.run import Run

SPREAD_KEYS = ("served", "rejected", "total_time_s", "throughput_tokens_per_s", "decisions")


def as_json(run: Run) -> dict[str, Any]:
    """Make the JSON object. A measure that does not exist (no sample points, nothing served) is None."""
    difference = run.difference
    summary: dict[str, Any] = {
        "workload": run.workload,
        "policy": run.policy,
        "seed": run.seed,
        "requests": run.requests,
        "served": run.served,
        "rejected": run.rejected,
        "rejections": run.rejections,
        "total_time_s": run.total_time_s,
        "throughput_tokens_per_s": run.throughput_tokens_per_s,
        "service_difference": {
            key: None if difference is None else getattr(difference, key) for key in ("max", "avg", "var")
        },
        "tenants": {name: _tenant(tenant) for name, tenant in run.tenants.items()},
        "decisions": run.decisions,
        "bounds": run.bounds,
    }
    if run.timing is not None:
        summary["timing"] = {
            "wall_s": run.timing.wall_s,
            "decision_us_mean": run.timing.decision_us_mean,
            "decision_us_p99": run.timing.decision_us_p99,
        }
    if run.scheduling is not None:
        summary["scheduling"] = run.scheduling.as_json()
    return summary


def spread_of(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """Return {measure: {mean, sd}} over runs that differ only in the seed; sd is the sample standard deviation."""
    measures = {key: [float(getattr(run, key)) for run in runs] for key in SPREAD_KEYS}
    for key in ("max", "avg", "var"):
        values = [getattr(run.difference, key) for run in runs if run.difference is not None]
        if values:
            measures[f"service_difference.{key}"] = values
    return {
        key: {"mean": fmean(values), "sd": stdev(values) if len(values) > 1 else 0.0}
        for key, values in measures.items()
    }


def _tenant(tenant: TenantMeasures) -> dict[str, Any]:
    return {
        "requests": tenant.requests,
        "served": tenant.served,
        "rejected": tenant.rejected,
        "service": tenant.service,
        "ttft_s": _percentiles(tenant.ttft_s),
        "latency_s": _percentiles(tenant.latency_s),
    }


def _percentiles(values: Percentiles | None) -> dict[str, float | None]:
    return {"p50": None, "p99": None} if values is None else {"p50": values.p50, "p99": values.p99}
