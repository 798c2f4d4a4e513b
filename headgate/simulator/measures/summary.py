"""The object that `headgate simulate --json` prints for a run, or for the runs of several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import fmean, stdev
from typing import Any

from headgate.simulator.run import Run

SPREAD_KEYS = ("served", "rejected", "total_time_s", "throughput_tokens_per_s", "decisions")
DIFFERENCE_KEYS = ("max", "avg", "var")


def as_json(run: Run) -> dict[str, Any]:
    """Make the JSON object. A measure that does not exist (no sample points, nothing served) is None."""
    fields = asdict(replace(run, timeline=None))
    summary = {"service_difference" if name == "difference" else name: value for name, value in fields.items()}
    for name in ("pool_tokens", "timeline"):
        del summary[name]
    for name in ("timing", "scheduling"):
        if summary[name] is None:
            del summary[name]
    summary["service_difference"] = summary["service_difference"] or dict.fromkeys(DIFFERENCE_KEYS)
    for tenant in summary["tenants"].values():
        for name in ("ttft_s", "latency_s"):
            tenant[name] = tenant[name] or dict.fromkeys(("p50", "p99"))
    return summary


def spread_of(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """Return {measure: {mean, sd}} over runs that differ only in the seed; sd is the sample standard deviation."""
    measures = {key: [float(getattr(run, key)) for run in runs] for key in SPREAD_KEYS}
    for key in DIFFERENCE_KEYS:
        values = [getattr(run.difference, key) for run in runs if run.difference is not None]
        if values:
            measures[f"service_difference.{key}"] = values
    return {
        key: {"mean": fmean(values), "sd": stdev(values) if len(values) > 1 else 0.0}
        for key, values in measures.items()
    }
