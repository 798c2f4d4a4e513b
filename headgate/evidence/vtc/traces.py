"""The workloads of the VTC paper, and the authors' logs, measured with the same code as our runs."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from headgate.evidence.document.sections import Setting
from headgate.evidence.vtc.paper import HORIZON_S
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.measures.collector import Collector
from headgate.simulator.requests import SimRequest
from headgate.simulator.run import Run, RunSpec, run_of
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import Workload, open_workload

FILES = {"vtc-predict": "vtc_predict", "vtc-noisy:0.5": "vtc_pred_50", "vtc-oracle": "vtc_oracle"}


def measured_file(traces: Path, workload: str, policy: str) -> Path | None:
    name = FILES.get(policy, policy.replace(":", ""))
    path = traces / "vtc" / "measured" / f"{workload}.{name}.csv"
    return path if path.exists() else None


def workload_of(traces: Path, workload: str, policy: str) -> Workload:
    """Return the requests of the authors' run if its log is there, because runs differ in length; else the workload."""
    path = measured_file(traces, workload, policy) or traces / "vtc" / f"{workload}.csv"
    return open_workload([str(path)])


def measured_run(
    traces: Path, workload: str, policy: str, service: ServiceFunction = WEIGHTED_TOKENS, *, timeline: bool = False
) -> Run | None:
    """Return the authors' run, measured as our runs are; None if its log is not there."""
    path = measured_file(traces, workload, policy)
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
