"""Run the claims of the evidence under broken policies: `python -m benchmarks.evidence_mutants`.

Each experiment runs unbroken, and under every mutant that may change it, in smaller runs than those of the page: some
two hours on two cores. A claim that holds unbroken and fails under a mutant is *turned* by it. The result goes into
docs/evidence/mutants.json and, as a page, docs/evidence/mutants.md. Beside them mutants_code.json has digests of the
code that each run executed, by which the page marks what is stale. `--only` and `--mutants` renew a part of it. After a
change of code, `--stale --cover` renews a part that shows for every claim a mutant that turns it, and `--planner` all
that a change of the planner may change. Exit code 1 if a mutant turns no claim.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from tempfile import TemporaryDirectory

from benchmarks.evidence_mutants.code import ROOT, Codes
from benchmarks.evidence_mutants.jobs import Job, Played, play_timed
from benchmarks.evidence_mutants.mutants import MUTANTS, OF_THE_PLANNER, is_named
from benchmarks.evidence_mutants.page import Found, Held, Verdicts, find_unnoticed, list_holding, render_page
from headgate.evidence.registry import EXPERIMENTS
from headgate.simulator.parallel import Processes

FOLDER = ROOT / "docs" / "evidence"
CODES = FOLDER / "mutants_code.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence_mutants", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", default="", help="experiments, separated by commas; qlm- stands for all that begin so (all)"
    )
    parser.add_argument("--mutants", default="", help="mutants, separated by commas (all)")
    parser.add_argument("--without", default="", help="experiments that are left out")
    parser.add_argument(
        "--planner", action="store_true", help="what a change of the planner may change: its experiments and mutants"
    )
    parser.add_argument("--stale", action="store_true", help="of these, what was played with code that has changed")
    parser.add_argument(
        "--cover", action="store_true", help="of the mutants, as few as turned every claim when they were last played"
    )
    parser.add_argument("--processes", type=int, default=None)
    parser.add_argument("--page", action="store_true", help="only write the page again, and list what is stale and why")
    options = parser.parse_args()
    if options.page:
        _list_stale()
    else:
        only, mutants = _names(options.only), _names(options.mutants)
        if options.planner:
            only, mutants = only or {"qlm-"}, mutants or set(OF_THE_PLANNER)
        jobs = list(list_jobs(only, mutants, _names(options.without)))
        if options.cover:
            cover = find_cover(list(list_jobs(set(), set(), set())), read_verdicts())
            jobs = [job for job in jobs if job in cover]
        if options.stale:
            jobs = _find_stale(jobs)
        with TemporaryDirectory() as kept, Processes(options.processes) as pool:
            _run([job._replace(kept=kept) for job in jobs], pool)
    unnoticed = find_unnoticed(_record([]))
    sys.stdout.write("".join(f"no claim notices: {name}\n" for name in unnoticed))
    return 1 if unnoticed else 0


def _run(jobs: Sequence[Job], pool: Processes) -> None:
    """Run the unbroken experiments, and then the mutants of each."""
    parts = [[job for job in jobs if not job.mutant]]
    broken = (job for job in jobs if job.mutant)
    parts += [list(of_experiment) for _, of_experiment in groupby(broken, key=lambda job: job.experiment)]
    for part in parts:
        played = pool.map(play_timed, part)
        for job, _, _, seconds in played:
            sys.stdout.write(f"{job.experiment}, {job.mutant or 'unbroken'}: {seconds:.0f} s\n")
        sys.stdout.flush()
        _record(played)


def find_cover(jobs: Sequence[Job], found: Found) -> list[Job]:
    """Return the unbroken plays, and few mutants of each experiment that turned all claims that any of them turned:
    again and again the one that turned most of those that are left. An experiment that has not been played has all.
    A mutant that would not be played at all is played where it turned most claims."""
    turned = {job: _find_turned(job, found) for job in jobs if job.mutant}
    chosen = {job for job in jobs if not job.mutant or job.experiment not in found}
    for experiment in dict.fromkeys(job.experiment for job in jobs):
        own = [job for job in turned if job.experiment == experiment]
        left = set().union(*(turned[job] for job in own))
        while left:
            best = max(own, key=lambda job: len(turned[job] & left))
            chosen.add(best)
            left -= turned[best]
    for mutant in {job.mutant for job in turned} - {job.mutant for job in chosen}:
        chosen.add(max((job for job in turned if job.mutant == mutant), key=lambda job: len(turned[job])))
    return [job for job in jobs if job in chosen]


def _find_turned(job: Job, found: Found) -> set[str]:
    of_experiment = found.get(job.experiment, {})
    fails = {claim for claim, held in of_experiment.get(job.mutant, {}).items() if held is False}
    return fails.intersection(list_holding(of_experiment))


def _find_stale(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs that are stale, and the unbroken play of each experiment that has one."""
    codes = Codes.read(CODES)
    experiments = {job.experiment for job in jobs if codes.is_stale(job.experiment, job.mutant)}
    return [
        job
        for job in jobs
        if job.experiment in experiments and (not job.mutant or codes.is_stale(job.experiment, job.mutant))
    ]


def _list_stale() -> None:
    codes = Codes.read(CODES)
    for name, by_mutant in read_verdicts().items():
        if stale := [mutant or "unbroken" for mutant in by_mutant if codes.is_stale(name, mutant)]:
            changed = ", ".join(codes.find_changed_files(name)) or "none, or not known"
            sys.stdout.write(f"{name}: {', '.join(stale)}; changed files: {changed}\n")


def _names(text: str) -> set[str]:
    return {name.strip() for name in text.split(",") if name.strip()}


def list_jobs(only: set[str], mutants: set[str], without: set[str]) -> Iterable[Job]:
    for experiment in EXPERIMENTS:
        if is_named(experiment, without) or (only and not is_named(experiment, only)):
            continue
        yield Job(experiment, "")
        for name, mutant in MUTANTS.items():
            if mutant.may_change(experiment) and (not mutants or name in mutants):
                yield Job(experiment, name)


def read_verdicts() -> dict[str, dict[str, Verdicts]]:
    path = FOLDER / "mutants.json"
    found: dict[str, dict[str, Verdicts]] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return {
        name: {mutant: verdicts for mutant, verdicts in of_name.items() if not mutant or _is_concerned(name, mutant)}
        for name, of_name in found.items()
        if name in EXPERIMENTS
    }


def _is_concerned(experiment: str, mutant: str) -> bool:
    return mutant in MUTANTS and MUTANTS[mutant].may_change(experiment)


def _record(played: Iterable[Played]) -> dict[str, dict[str, Verdicts]]:
    """Put what was played into the files, beside what another command has put there meanwhile, and write the page."""
    found, codes = read_verdicts(), Codes.read(CODES)
    for job, verdicts, files, _ in played:
        found.setdefault(job.experiment, {})[job.mutant] = verdicts
        codes.record(job.experiment, job.mutant, files)
    ordered = {
        name: {mutant: found[name][mutant] for mutant in ("", *MUTANTS) if mutant in found[name]}
        for name in EXPERIMENTS
        if name in found
    }
    (FOLDER / "mutants.json").write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", "utf-8")
    codes.write(CODES)
    (FOLDER / "mutants.md").write_text(render_page(ordered, read_held(), codes.is_stale), "utf-8")
    return ordered


def read_held() -> Held:
    sections = json.loads((FOLDER / "claims.json").read_text("utf-8"))
    return {
        name: [check["claim"] for check in section["checks"] if check["held"]] for name, section in sections.items()
    }


if __name__ == "__main__":
    sys.exit(main())
