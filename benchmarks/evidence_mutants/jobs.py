"""An experiment under a mutant, as a job for parallel processes."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, TypeVar

from benchmarks.evidence_mutants.mutants import MUTANTS, Changes, Mutant, applied
from benchmarks.evidence_mutants.page import Verdicts
from headgate.evidence.bwfq import cares, paper
from headgate.evidence.document import Setting
from headgate.evidence.registry import EXPERIMENTS
from headgate.evidence.vtc import measured, theorems
from headgate.simulator.run import RunSpec

TRACES = Path(__file__).parents[3] / "shared" / "traces"
SEEDS = 2
_SEEDS_OF = {"fairserve": 6, "fairserve-service": 6, "preemption-limits": 4}
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
J = TypeVar("J")
R = TypeVar("R")


class Job(NamedTuple):
    """`mutant`: "" for none. `kept`: a folder for the runs of fleets that other mutants do not change; "" for none."""

    experiment: str
    mutant: str
    kept: str = ""


def timed(job: Job) -> tuple[Job, Verdicts, float]:
    began = time.monotonic()
    return job, play(job), time.monotonic() - began


def play(job: Job) -> Verdicts:
    """Run an experiment under a mutant, in this process. Raises RuntimeError if it ends with an error: such a mutant is
    itself broken, and says nothing about a claim."""
    seeds, in_turn = _SEEDS_OF.get(job.experiment, SEEDS), _InTurn(job)
    with applied(_FEWER), applied(MUTANTS.get(job.mutant)):
        try:
            section = EXPERIMENTS[job.experiment](Setting(in_turn, TRACES if TRACES.is_dir() else None, seeds))
        except Exception as error:
            raise RuntimeError(f"{job.experiment} under {job.mutant or 'no mutant'!r} ended with an error") from error
    return {check.claim: check.held for check in section.checks}


class _InTurn:
    """Runs an experiment's jobs in turn. The unbroken experiment leaves its runs of fleets in a folder, and a mutant
    takes those from there that it does not change."""

    def __init__(self, job: Job) -> None:
        self._job, self._runs = job, 0
        mutant = MUTANTS.get(job.mutant)
        self._changed = mutant.planners if mutant is not None else ()

    def __call__(self, function: Callable[[J], R], jobs: Iterable[J], /) -> list[R]:
        return [self._run(function, each) for each in jobs]

    def _run(self, function: Callable[[J], R], each: J) -> R:
        if not isinstance(each, RunSpec) or not each.planner or not self._job.kept:
            return function(each)
        self._runs += 1
        name = f"{self._job.experiment} {self._runs} {each.workload.name} {each.planner}"
        path = Path(self._job.kept) / name.replace("/", "-")
        if self._changed and each.planner not in self._changed and path.is_file():
            kept: R = pickle.loads(path.read_bytes())  # noqa: S301 - our own, of the same command
            return kept
        run = function(each)
        if not self._job.mutant:
            path.write_bytes(pickle.dumps(run))
        return run


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


_FEWER = Mutant("fewer runs", (), _fewer)
