"""What the figures of the VTC paper share: how a workload is played, and what is checked of the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import as_file, files

from headgate.evidence.document.sections import Check, Setting, Table
from headgate.evidence.over_seeds import mean, over_seeds, ratio
from headgate.evidence.over_time import apart_max
from headgate.evidence.vtc.traces import measured_runs
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.run import Run, RunSpec
from headgate.workloads.sources import Workload, open_workload

Runs = Mapping[str, Sequence[Run]]
VTC_AND_FCFS = ("vtc", "fcfs")
TURNOVER_S = 6.0
"""The longest wait of an isolated client, for space in the batch: on the authors' GPU, clients under their share waited
5 s."""
APART_MAX = 40_000.0
"""2 U of Theorem 4.4 with the pool of 10,000 tokens, in service units."""


def described(name: str) -> Workload:
    """Open a workload file of this package; `headgate simulate` plays the same file."""
    with as_file(files("headgate.evidence.vtc") / "workloads" / f"{name}.yaml") as path:
        return open_workload([str(path)])


def played(
    setting: Setting,
    workload: Workload,
    policies: Sequence[str] = VTC_AND_FCFS,
    *,
    weights: Mapping[str, float] | None = None,
) -> dict[str, list[Run]]:
    """Run the workload under each policy with all seeds and with timelines."""
    spec = RunSpec(
        workload, "", load_profile(), weights=weights or {}, horizon_s=workload.last_arrival_s, timeline=True
    )
    return over_seeds(setting, {policy: replace(spec, policy=policy) for policy in policies})


def measured_timelines(setting: Setting, workload: str) -> dict[str, Run]:
    """Return the authors' runs of vtc and fcfs with timelines."""
    return measured_runs(setting, workload, VTC_AND_FCFS, timeline=True)


def first_seed(runs: Runs) -> dict[str, Run]:
    return {policy: of_policy[0] for policy, of_policy in runs.items()}


def bounded_under_vtc(runs: Runs, to_s: float, factor: float = 3.0) -> list[Check]:
    """Check that the worst seed of vtc stays within its bound, and that fcfs drifts much further apart than vtc."""
    worst = max(apart_max(run, to_s) for run in runs["vtc"])
    vtc, fcfs = (mean(runs[policy], lambda run: apart_max(run, to_s)) for policy in VTC_AND_FCFS)
    return [
        Check("vtc: accumulated service never more than 40,000 apart", worst <= APART_MAX, f"{worst:,.0f} at most"),
        Check(
            f"under fcfs service drifts at least {factor:g} times as far apart as under vtc",
            fcfs >= factor * vtc,
            f"fcfs {fcfs:,.0f}, vtc {vtc:,.0f}",
        ),
    ]


def equal(what: str, values: Sequence[float], tolerance: float = 0.05) -> Check:
    """Check that the greatest value is at most `tolerance` above the least."""
    low, high = min(values), max(values)
    return Check(
        f"{what} within {tolerance:.0%}", high <= low * (1 + tolerance), " : ".join(f"{v:,.0f}" for v in values)
    )


def prompt(what: str, seconds: float) -> Check:
    """Check that a wait is no longer than until there is space in the batch."""
    return Check(f"{what} below {TURNOVER_S:g} s", seconds < TURNOVER_S, f"{seconds:.2f} s")


def apart_table(runs: Runs, measured: Mapping[str, Run], to_s: float) -> Table:
    """Tabulate the greatest difference of each scheduler, beside the measured runs if there are any to compare with."""
    title = "Greatest difference of accumulated service (units)"
    ours = {policy: mean(of_policy, lambda run: apart_max(run, to_s)) for policy, of_policy in runs.items()}
    if not measured:
        return Table(title, ("scheduler", "ours"), list(ours.items()))
    theirs = {policy: apart_max(run, to_s) for policy, run in measured.items()}
    rows = [(policy, theirs.get(policy), value, ratio(value, theirs.get(policy))) for policy, value in ours.items()]
    return Table(title, ("scheduler", "measured", "ours", "ratio"), rows)
