"""The object that `headgate simulate --json` prints for a run, or for the runs of several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import fmean, stdev
from typing import Any

from headgate.simulator.measures.collector import Measures
from headgate.simulator.run import Run

SPREAD_KEYS = ("served", "rejected", "total_time_s", "throughput_tokens_per_s", "decisions")
DIFFERENCE_KEYS = ("max", "avg", "var")
OF_FLEETS = ("planner", "classes", "swaps", "swapping_s", "moves")
"""The measures that only a fleet has."""


def as_json(run: Run) -> dict[str, Any]:
    """Make the JSON object. A measure that does not exist (no sample points, nothing served) is None."""
    if run.planner:
        return _fleet_json(run)
    fields = asdict(replace(run, timeline=None))
    summary = {"service_difference" if name == "difference" else name: value for name, value in fields.items()}
    for name in ("pool_tokens", "timeline", "all", *OF_FLEETS):
        del summary[name]
    for name in ("timing", "scheduling"):
        if summary[name] is None:
            del summary[name]
    summary["service_difference"] = summary["service_difference"] or dict.fromkeys(DIFFERENCE_KEYS)
    for tenant in summary["tenants"].values():
        del tenant["in_time"]
        for name in ("ttft_s", "latency_s"):
            tenant[name] = tenant[name] or dict.fromkeys(("p50", "p99"))
    return summary


def _fleet_json(run: Run) -> dict[str, Any]:
    return {
        "workload": run.workload,
        "planner": run.planner,
        "policy": run.policy,
        "all": _in_time(run.all),
        "classes": {name: _in_time(measures) for name, measures in run.classes.items()},
        "tenants": {name: _in_time(measures) for name, measures in run.tenants.items()},
        "total_time_s": run.total_time_s,
        "requests_per_s": run.requests_per_s,
        "tokens_per_s": run.throughput_tokens_per_s,
        "swaps": run.swaps,
        "swapping_s": run.swapping_s,
        "rejections": run.rejections,
        "moves": run.moves,
    }


def _in_time(measures: Measures) -> dict[str, Any]:
    first_token_s = None if measures.ttft_s is None else asdict(measures.ttft_s)
    counts = {"requests": measures.requests, "served": measures.served, "in_time": measures.in_time}
    return {**counts, "first_token_s": first_token_s}


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
