"""Figures 12 and 13 of the VTC paper: response times on the arena trace, beside the measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from headgate.evidence.document import Check, Section, Setting, Table, experiment
from headgate.evidence.runs import over_seeds, ratio, response_plot
from headgate.evidence.vtc.play import measured_runs
from headgate.evidence.vtc.tables import specs_of
from headgate.simulator.report.plots import timeline_of
from headgate.simulator.run import Run

POLICIES = ("fcfs", "vtc", "rpm:5", "rpm:30")
MIDDLE = slice(12, 14)
"""The 13th and 14th client by number of requests, fewest first…"""
BUSIEST = slice(25, 27)
"""…and the 26th and 27th, as in the paper."""


@experiment(
    "vtc-response",
    "Response times on the arena trace",
    "VTC, section 5.3, Figures 12 and 13",
    needs_traces=True,
)
def vtc_response(setting: Setting) -> Section:
    specs = specs_of(setting, "real", POLICIES)
    runs = over_seeds(setting, {policy: replace(spec, timeline=True) for policy, spec in specs.items()})
    clients = _clients(runs["fcfs"][0])
    logs = measured_runs(setting, "real", POLICIES)
    ours = {(p, c): median(_p50(run, c) for run in runs[p]) for p in POLICIES for c in clients}
    theirs = {(p, c): _p50(log, c) for p, log in logs.items() for c in log.tenants}
    rows = [(*key, theirs.get(key), seconds, ratio(seconds, theirs.get(key))) for key, seconds in ours.items()]
    return Section(
        text=(
            "Median time to first token of the 13th, 14th, 26th and 27th of the 27 clients by number of requests; ours "
            "is the median over the seeds. Under VTC only the clients that request more than their share wait.",
        ),
        tables=[Table("Median time to first token (s)", ("scheduler", "client", "measured", "ours", "ratio"), rows)],
        checks=[
            Check(
                f"vtc: {client} waits less than a tenth of its wait under fcfs",
                ours["vtc", client] < 0.1 * ours["fcfs", client],
                f"{ours['vtc', client]:.2f} s against {ours['fcfs', client]:.2f} s",
            )
            for client in clients[:2]
        ],
        plots=[response_plot("12", {p: _of_clients(runs[p][0], clients) for p in ("vtc", "fcfs")}, 600)],
    )


def _clients(run: Run) -> list[str]:
    by_requests = sorted(run.tenants, key=lambda name: (run.tenants[name].requests, name))
    return by_requests[MIDDLE] + by_requests[BUSIEST]


def _p50(run: Run, client: str) -> float:
    figures = run.tenants[client].ttft_s
    return 0.0 if figures is None else figures.p50


def _of_clients(run: Run, clients: Sequence[str]) -> Run:
    """Keep only these clients' response times."""
    timeline = timeline_of(run)
    return replace(run, timeline=replace(timeline, response_s={c: timeline.response_s[c] for c in clients}))
