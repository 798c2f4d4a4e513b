"""The VTC paper's workloads, and its measured runs read with the same measures as ours."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from headgate.evidence.document.sections import Section
from headgate.evidence.vtc.paper import HORIZON_S
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.measures.collector import Collector
from headgate.simulator.requests import SimRequest
from headgate.simulator.run import Run, RunSpec, run_of
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import Workload, open_workload

FILES = {"vtc-predict": "vtc_predict", "vtc-noisy:0.5": "vtc_pred_50", "vtc-oracle": "vtc_oracle"}


def skipped(title: str, source: str) -> Section:
    return Section(title, source, skipped="the traces of the VTC artifact are not here (name their folder: --traces)")


def measured_file(traces: Path, workload: str, policy: str) -> Path | None:
    name = FILES.get(policy, policy.replace(":", ""))
    path = traces / "vtc" / "measured" / f"{workload}.{name}.csv"
    return path if path.exists() else None


def workload_of(traces: Path, workload: str, policy: str) -> Workload:
    """The requests of the measured run where there is one (runs differ in length), else those of the workload."""
    path = measured_file(traces, workload, policy) or traces / "vtc" / f"{workload}.csv"
    return open_workload([str(path)])


def measured_requests(traces: Path, workload: str, policy: str) -> list[SimRequest]:
    """The requests that were served; none where the run was not published. A log says nothing of when a request was
    admitted: its first token stands for that."""
    path = measured_file(traces, workload, policy)
    return [] if path is None else list(_served(path))


def _served(path: Path) -> Iterator[SimRequest]:
    with path.open(newline="") as file:
        for number, row in enumerate(csv.DictReader(file)):
            arrival_s, latency_s = float(row["arrival_s"]), float(row["latency_s"])
            if latency_s < 0:  # it was rejected
                continue
            arrival = Arrival(arrival_s, row["tenant"], int(row["input_tokens"]), int(row["output_tokens"]))
            first_s = arrival_s + float(row["ttft_s"])
            yield SimRequest(str(number), arrival, arrival_s, 1.0, first_s, first_s, arrival_s + latency_s)


def measured_run(
    traces: Path, workload: str, policy: str, service: ServiceFunction = WEIGHTED_TOKENS, *, timeline: bool = False
) -> Run | None:
    """The measured run, measured as ours are."""
    requests = measured_requests(traces, workload, policy)
    if not requests:
        return None
    collector = Collector(service, HORIZON_S, timeline=timeline)
    for request in requests:
        collector.served(request)
    spec = RunSpec(workload_of(traces, workload, policy), policy, load_profile(), horizon_s=HORIZON_S)
    return run_of(spec, collector, decisions=len(requests))
