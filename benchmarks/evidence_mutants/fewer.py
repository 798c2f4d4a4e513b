"""The smaller runs of the experiments, with which all mutants are affordable. seeds.py has their seeds."""

from __future__ import annotations

from pathlib import Path

from benchmarks.evidence_mutants.mutants import Changes, Mutant
from benchmarks.evidence_mutants.seeds import SEEDS
from headgate.evidence.bwfq import cares, paper
from headgate.evidence.vtc import measured, theorems

_MISSING = ("a100-13b-65000-512.vtc", "a100-13b-65000-768.vtc", "overload.vtc_pred_50")
"""The measured runs, beside those with 27 clients, of which a figure is outside of its tolerance unbroken."""
_OF_27_CLIENTS = ("real.fcfs", "real.rpm30")
"""Those with 27 clients of which every figure is within."""
_OURS = 1
"""Simulations of a measured run with misses, beside the one that is compared."""
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


_measured_logs = measured.measured_logs


def _few_runs(traces: Path) -> list[Path]:
    return [path for path in _measured_logs(traces) if path.stem in _OF_27_CLIENTS or _is_made(path)]


def _is_made(path: Path) -> bool:
    return not path.stem.startswith("real.") and path.stem not in _MISSING


def _fewer() -> Changes:
    return [
        (measured, "measured_logs", _few_runs),
        (measured, "_OURS", _OURS),
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
