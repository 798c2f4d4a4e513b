"""The VTC paper's workloads, and its measured runs read with the same measures as ours."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from headgate.simulator.evidence.sections import Section
from headgate.simulator.evidence.vtc_paper import HORIZON_S
from headgate.simulator.measures import Difference, ServiceRates
from headgate.workloads.sources import Workload, open_workload

FILES = {"vtc-predict": "vtc_predict", "vtc-noisy:0.5": "vtc_pred_50", "vtc-oracle": "vtc_oracle"}


@dataclass(frozen=True, slots=True)
class Measured:
    """A run on the authors' GPU."""

    difference: Difference
    throughput: float
    total_time_s: float


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


def measured_run(
    traces: Path, workload: str, policy: str, service: ServiceFunction = WEIGHTED_TOKENS
) -> Measured | None:
    path = measured_file(traces, workload, policy)
    return None if path is None else _measured(path, service)


def _measured(path: Path, service: ServiceFunction) -> Measured:
    rates = ServiceRates(HORIZON_S)
    tokens, total_s = 0, 0.0
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            arrival_s, latency_s = float(row["arrival_s"]), float(row["latency_s"])
            if latency_s < 0:
                continue
            prompt, output = int(row["input_tokens"]), int(row["output_tokens"])
            rates.asked(row["tenant"], arrival_s, service(prompt, output))
            rates.served(
                row["tenant"], arrival_s + float(row["ttft_s"]), arrival_s + latency_s, service(prompt, output)
            )
            tokens += prompt + output
            total_s = max(total_s, arrival_s + latency_s)
    return Measured(rates.difference(), tokens / total_s, total_s)
