"""The smaller runs of the experiments, with which all mutants are affordable."""

from __future__ import annotations

from pathlib import Path

from benchmarks.evidence_mutants.mutants import Changes, Mutant
from headgate.evidence.bwfq import cares, paper
from headgate.evidence.vtc import measured, theorems

SEEDS = 2
SEEDS_OF = {"fairserve": 6, "fairserve-service": 6, "preemption-limits": 4}
"""Cheap experiments with counts of few requests a run."""
RUNS = (
    *("increase.vtc", "on_off_less.vtc", "overload-multi.vtc_oracle", "overload.vtc", "overload.vtc_pred_50"),
    *("poisson_short_long.vtc", "poisson_short_long_2.vtc", "proportional.vtc", "overload.vtc_profile"),
)
"""The measured runs that are played: short ones of which every figure is within its tolerance, or nearly."""
_RANDOM_WORKLOADS = 40
_LATENCY_LOADS = (0.6,)
_CARES_ORDERS = {
    **dict.fromkeys(cares.RUNS, ("bwfq",)),
    **dict.fromkeys(("idle_long", "slept", "history", "stale", "costs"), ("ratio+wake", "bwfq")),
    "stranded": ("ratio", "bwfq"),
    "owed_more": ("sfq", "bwfq"),
    "overbooked": ("virtual-clock", "bwfq"),
}
"""The orders of which each run has a claim."""


def _few_runs(traces: Path) -> list[Path]:
    return [traces / "vtc" / "measured" / f"{name}.csv" for name in RUNS]


def _fewer() -> Changes:
    return [
        (measured, "measured_logs", _few_runs),
        (theorems, "_RANDOM_WORKLOADS", _RANDOM_WORKLOADS),
        (paper, "_SEEDS", SEEDS),
        (paper, "_LOADS", _LATENCY_LOADS),
        (paper, "_ORDERS", paper._ORDERS_OF_TABLE_2),
        (paper, "_SCALE_SEEDS", 1),
        (
            paper,
            "_SIZES",
            [size for size in paper._SIZES if size.workers <= 100 and size.interactive + size.batch <= 100],
        ),
        (cares, "_SEEDS", 1),
        (cares, "_COMPARED", _CARES_ORDERS),
    ]


FEWER = Mutant("fewer runs", (), _fewer)
