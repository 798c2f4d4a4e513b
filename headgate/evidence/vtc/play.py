"""What the figures of the VTC paper (OSDI 2024) share: its workloads, how they are played, and what is checked.

The printed figures of Tables 2 to 6 stand here by headgate's names of the schedulers. The authors' logs are measured
with the same code as our runs.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from headgate.evidence.document import Check, Setting, Table
from headgate.evidence.runs import apart_max, mean, over_seeds, ratio, service_between
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.measures.collector import Collector
from headgate.simulator.requests import SimRequest
from headgate.simulator.run import Run, RunSpec, run_of
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import Workload, open_workload


class Printed(NamedTuple):
    """Service difference in service units per second (`var`: squared); throughput in input and output tokens/s."""

    max: float
    avg: float
    var: float
    throughput: float


TABLE_2 = {
    "fcfs": Printed(759.97, 433.53, 32112.00, 777),
    "lcf": Printed(750.49, 323.82, 29088.90, 778),
    "vtc": Printed(368.40, 251.66, 6549.16, 779),
    "vtc-predict": Printed(365.47, 240.33, 5321.62, 773),
    "vtc-oracle": Printed(329.46, 227.51, 4475.76, 781),
    "rpm:5": Printed(143.86, 83.58, 1020.46, 340),
    "rpm:20": Printed(446.76, 195.71, 7449.79, 694),
    "rpm:30": Printed(693.66, 309.45, 24221.31, 747),
}
TABLE_3 = {
    "fcfs": Printed(743.23, 457.29, 26645.42, 777),
    "lcf": Printed(709.35, 384.78, 23299.20, 778),
    "vtc": Printed(707.35, 368.74, 21918.67, 780),
    "vtc-predict": Printed(617.22, 337.05, 11803.41, 778),
    "vtc-oracle": Printed(387.43, 277.18, 4541.57, 783),
    "rpm:5": Printed(230.78, 151.00, 823.15, 340),
    "rpm:20": Printed(445.34, 270.51, 5938.52, 694),
    "rpm:30": Printed(801.16, 377.22, 25980.39, 747),
}
TABLE_4 = {
    "fcfs": Printed(323.18, 317.13, 15.98, 876),
    "vtc": Printed(137.27, 74.87, 2819.40, 900),
    "vtc-oracle": Printed(4.28, 0.34, 0.91, 893),
}
TABLE_5 = {
    "vtc": Printed(192.88, 103.77, 6981.24, 893),
    "vtc-noisy:0.5": Printed(33.98, 12.54, 111.94, 904),
    "vtc-oracle": Printed(5.87, 0.51, 1.71, 895),
}
TABLE_6 = {
    "vtc": Printed(322.16, 162.20, 5151.49, 875),
    "vtc-noisy:0.5": Printed(99.43, 66.32, 487.10, 875),
    "vtc-oracle": Printed(43.23, 36.34, 56.52, 875),
}
HORIZON_S = 600.0
"""T of the service difference in all tables."""


_FILES = {"vtc-predict": "vtc_predict", "vtc-noisy:0.5": "vtc_pred_50", "vtc-oracle": "vtc_oracle"}
_PROFILE = "_profile"
"""So end the names of the logs of runs that were charged by the profiled cost."""


def _find_log(traces: Path, workload: str, policy: str, ending: str = "") -> Path | None:
    name = _FILES.get(policy, policy.replace(":", ""))
    path = traces / "vtc" / "measured" / f"{workload}.{name}{ending}.csv"
    return path if path.exists() else None


def workload_of(traces: Path, workload: str, policy: str) -> Workload:
    """Return the requests of the authors' run if its log is there, because runs differ in length; else the workload."""
    path = _find_log(traces, workload, policy) or traces / "vtc" / f"{workload}.csv"
    return open_workload([str(path)])


def specs_of(setting: Setting, workload: str, policies: Sequence[str]) -> dict[str, RunSpec]:
    profile = load_profile()
    return {
        policy: RunSpec(workload_of(setting.traces_folder, workload, policy), policy, profile, horizon_s=HORIZON_S)
        for policy in policies
    }


def measured_run(
    traces: Path,
    workload: str,
    policy: str,
    service: ServiceFunction = WEIGHTED_TOKENS,
    *,
    timeline: bool = False,
    is_profiled: bool = False,
) -> Run | None:
    """Return the authors' run, measured as our runs are; None if its log is not there. `is_profiled`: the run that was
    charged by the profiled cost."""
    path = _find_log(traces, workload, policy, _PROFILE if is_profiled else "")
    if path is None:
        return None
    collector = Collector(service, HORIZON_S, timeline=timeline)
    served = list(_read_served(path))
    for request in served:
        collector.on_served(request)
    spec = RunSpec(workload_of(traces, workload, policy), policy, load_profile(), horizon_s=HORIZON_S)
    return run_of(spec, collector, decisions=len(served))


def measured_runs(
    setting: Setting, workload: str, policies: Sequence[str], *, timeline: bool = False
) -> dict[str, Run]:
    """Return the authors' runs of the policies that have a log."""
    traces = setting.traces_folder
    runs = {policy: measured_run(traces, workload, policy, timeline=timeline) for policy in policies}
    return {policy: run for policy, run in runs.items() if run is not None}


def _read_served(path: Path) -> Iterator[SimRequest]:
    """Read the served requests. The log has no time of admission: the time of the first token stands for it."""
    with path.open(newline="") as file:
        for number, row in enumerate(csv.DictReader(file)):
            arrival_s, latency_s = float(row["arrival_s"]), float(row["latency_s"])
            if latency_s < 0:  # rejected
                continue
            arrival = Arrival(arrival_s, row["tenant"], int(row["input_tokens"]), int(row["output_tokens"]))
            first_s = arrival_s + float(row["ttft_s"])
            yield SimRequest(str(number), arrival, arrival_s, 1.0, first_s, first_s, arrival_s + latency_s)


Runs = Mapping[str, Sequence[Run]]
VTC_AND_FCFS = ("vtc", "fcfs")
_TURNOVER_S = 6.0
"""The longest wait of an isolated client, for space in the batch: on the authors' GPU, clients under their share waited
5 s."""
_APART_MAX = 40_000.0
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
        Check("vtc: accumulated service never more than 40,000 apart", worst <= _APART_MAX, f"{worst:,.0f} at most"),
        Check(
            f"under fcfs service drifts at least {factor:g} times as far apart as under vtc",
            fcfs >= factor * vtc,
            f"fcfs {fcfs:,.0f}, vtc {vtc:,.0f}",
        ),
    ]


def equal_service(what: str, runs: Sequence[Run], from_s: float, to_s: float, tolerance: float = 0.05) -> Check:
    """Check that in no run the tenant that receives most in a period gets more than `tolerance` above the least."""
    tenants = list(runs[0].tenants)
    received = [[service_between([run], tenant, from_s, to_s) for tenant in tenants] for run in runs]
    worst = max(received, key=lambda of_run: max(of_run) / min(of_run))
    means = " : ".join(f"{fmean(of_tenant):,.0f}" for of_tenant in zip(*received, strict=True))
    return Check(
        f"{what} within {tolerance:.0%} in every run, from {from_s:g} to {to_s:g} s",
        max(worst) <= min(worst) * (1 + tolerance),
        f"mean {means}, furthest apart {' : '.join(f'{units:,.0f}' for units in worst)}",
    )


def prompt(what: str, seconds: float) -> Check:
    """Check that a wait is no longer than until there is space in the batch."""
    return Check(f"{what} below {_TURNOVER_S:g} s", seconds < _TURNOVER_S, f"{seconds:.2f} s")


def apart_table(runs: Runs, measured: Mapping[str, Run], to_s: float) -> Table:
    """Tabulate the greatest difference of each scheduler, beside the measured runs if there are any to compare with."""
    title = "Greatest difference of accumulated service (units)"
    ours = {policy: mean(of_policy, lambda run: apart_max(run, to_s)) for policy, of_policy in runs.items()}
    if not measured:
        return Table(title, ("scheduler", "ours"), list(ours.items()))
    theirs = {policy: apart_max(run, to_s) for policy, run in measured.items()}
    rows = [(policy, theirs.get(policy), value, ratio(value, theirs.get(policy))) for policy, value in ours.items()]
    return Table(title, ("scheduler", "measured", "ours", "ratio"), rows)
