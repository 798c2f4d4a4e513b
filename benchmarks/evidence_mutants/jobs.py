"""An experiment under a mutant, as a job for parallel processes."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, TypeVar

from benchmarks.evidence_mutants.code import play_recorded
from benchmarks.evidence_mutants.fewer import FEWER
from benchmarks.evidence_mutants.mutants import MUTANTS, applied
from benchmarks.evidence_mutants.page import Verdicts
from benchmarks.evidence_mutants.seeds import seeds_of
from headgate.evidence.document import Setting
from headgate.evidence.registry import EXPERIMENTS
from headgate.simulator.run import RunSpec

TRACES = Path(__file__).parents[3] / "shared" / "traces"
J = TypeVar("J")
R = TypeVar("R")


class Job(NamedTuple):
    """`mutant`: "" for none. `kept`: a folder for the runs of fleets that other mutants do not change; "" for none."""

    experiment: str
    mutant: str
    kept: str = ""


class Played(NamedTuple):
    """`files`: digests of the product's files that an unbroken experiment ran through; none under a mutant."""

    job: Job
    verdicts: Verdicts
    files: dict[str, str]
    seconds: float


def play_timed(job: Job) -> Played:
    began = time.monotonic()
    verdicts, files = (play(job), {}) if job.mutant else play_recorded(lambda: play(job))
    return Played(job, verdicts, files, time.monotonic() - began)


def play(job: Job) -> Verdicts:
    """Run an experiment under a mutant, in this process. Raises RuntimeError if it ends with an error: such a mutant is
    itself broken, and says nothing about a claim."""
    seeds, in_turn = seeds_of(job.experiment), _InTurn(job)
    with applied(FEWER), applied(MUTANTS.get(job.mutant)):
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
