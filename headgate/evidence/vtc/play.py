"""What the VTC paper's figures have in common here: how a workload is played, and what is checked of the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from statistics import fmean

from headgate.evidence.document.sections import Check, Setting, Table
from headgate.evidence.over_seeds import over_seeds
from headgate.evidence.over_time import (
    apart_max,
    response_between,
    service_between,
)
from headgate.evidence.vtc.traces import measured_run
from headgate.simulator.engines.profile import EngineProfile, load_profile
from headgate.simulator.run import Run, RunSpec
from headgate.workloads.sources import Workload, open_workload

Runs = Mapping[str, Sequence[Run]]
TURNOVER_S = 6.0
"""What an isolated client may wait, for room in the batch: those under their share waited 5 s on the authors' GPU."""
APART_MAX = 40_000.0
"""2 U of Theorem 4.4 with the pool of 10,000 tokens, service units."""


def described(name: str) -> Workload:
    """A workload that comes with headgate; `headgate simulate` plays the same file."""
    with as_file(files("headgate.evidence.vtc") / "workloads" / f"{name}.yaml") as path:
        return open_workload([str(path)])


def played(
    setting: Setting,
    workload: Workload,
    policies: Sequence[str] = ("vtc", "fcfs"),
    *,
    profile: EngineProfile | None = None,
    weights: Mapping[str, float] | None = None,
) -> dict[str, list[Run]]:
    engine = profile or load_profile()
    return over_seeds(
        setting,
        {
            policy: RunSpec(
                workload, policy, engine, weights=weights or {}, horizon_s=workload.last_arrival_s, timeline=True
            )
            for policy in policies
        },
    )


def mean_service(runs: Sequence[Run], tenant: str, from_s: float, to_s: float) -> float:
    return fmean(service_between(run, tenant, from_s, to_s) for run in runs)


def mean_response(runs: Sequence[Run], tenant: str, from_s: float, to_s: float) -> float:
    return fmean(response_between(run, tenant, from_s, to_s) for run in runs)


def bounded_under_vtc(runs: Runs, to_s: float, factor: float = 3.0) -> list[Check]:
    """The worst seed of vtc stays within its bound, and fcfs is well beyond what vtc does."""
    vtc = [apart_max(run, to_s) for run in runs["vtc"]]
    fcfs = [apart_max(run, to_s) for run in runs["fcfs"]]
    return [
        Check(
            "vtc: accumulated service never more than 40,000 apart", max(vtc) <= APART_MAX, f"{max(vtc):,.0f} at most"
        ),
        Check(
            f"fcfs drifts apart, at least {factor:g} times as far",
            fmean(fcfs) >= factor * fmean(vtc),
            f"fcfs {fmean(fcfs):,.0f}, vtc {fmean(vtc):,.0f}",
        ),
    ]


def equal(what: str, values: Sequence[float], tolerance: float = 0.05) -> Check:
    low, high = min(values), max(values)
    return Check(
        f"{what} within {tolerance:.0%}", high <= low * (1 + tolerance), " : ".join(f"{v:,.0f}" for v in values)
    )


def prompt(what: str, seconds: float) -> Check:
    """Nobody waits longer than it takes for room in the batch to turn up."""
    return Check(f"{what} below {TURNOVER_S:g} s", seconds < TURNOVER_S, f"{seconds:.2f} s")


def first_seed(runs: Runs) -> dict[str, Run]:
    return {policy: of_policy[0] for policy, of_policy in runs.items()}


def measured_of(setting: Setting, workload: str, policies: Sequence[str] = ("vtc", "fcfs")) -> dict[str, Run]:
    """The measured runs that were published, with their timelines."""
    assert setting.traces is not None
    runs = {policy: measured_run(setting.traces, workload, policy, timeline=True) for policy in policies}
    return {policy: run for policy, run in runs.items() if run is not None}


def apart_table(runs: Runs, measured: Mapping[str, Run], to_s: float) -> Table:
    """The greatest difference of each scheduler, beside the measured runs if there are any to compare with."""
    title = "Furthest apart in accumulated service (units)"
    if not measured:
        ours_only = [(policy, fmean(apart_max(run, to_s) for run in of_policy)) for policy, of_policy in runs.items()]
        return Table(title, ("scheduler", "ours"), ours_only)
    rows = []
    for policy, of_policy in runs.items():
        ours = fmean(apart_max(run, to_s) for run in of_policy)
        theirs = apart_max(measured[policy], to_s) if policy in measured else None
        rows.append((policy, theirs, ours, None if theirs is None else f"{ours / theirs:.2f}"))
    return Table(title, ("scheduler", "measured", "ours", "ratio"), rows)
