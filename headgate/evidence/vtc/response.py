"""Figures 12 and 13 of the VTC paper: who waits on the arena trace, beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from headgate.evidence.document.sections import Check, Section, Setting, Table, experiment
from headgate.evidence.over_seeds import over_seeds
from headgate.evidence.over_time import response_plot
from headgate.evidence.vtc.tables import specs_of
from headgate.evidence.vtc.traces import measured_run, skipped
from headgate.simulator.report.plots import timeline_of
from headgate.simulator.run import Run

POLICIES = ("fcfs", "vtc", "rpm:5", "rpm:30")
MIDDLE = slice(12, 14)
"""The 13th and 14th client by number of requests, fewest first…"""
BUSIEST = slice(25, 27)
"""…and the 26th and 27th, as in the paper."""


@experiment("vtc-response")
def vtc_response(setting: Setting) -> Section:
    title, source = "Who waits on the arena trace", "VTC, section 5.3, Figures 12 and 13"
    if setting.traces is None:
        return skipped(title, source)
    specs = specs_of(setting, "real", POLICIES)
    runs = over_seeds(setting, {policy: replace(spec, timeline=True) for policy, spec in specs.items()})
    clients = _clients(runs["fcfs"][0])
    ours = {(p, c): median(_p50(run, c) for run in runs[p]) for p in POLICIES for c in clients}
    theirs = {policy: _measured(setting.traces, policy) for policy in POLICIES}
    rows = [
        (p, c, theirs[p].get(c), ours[p, c], _ratio(ours[p, c], theirs[p].get(c))) for p in POLICIES for c in clients
    ]
    middle = clients[:2]
    return Section(
        title,
        source,
        text=(
            "Median time to first token of the 13th, 14th, 26th and 27th of the 27 clients by number of requests; ours "
            "is the median over the seeds. Under VTC only who asks for more than its share waits.",
        ),
        tables=[Table("Median time to first token (s)", ("scheduler", "client", "measured", "ours", "ratio"), rows)],
        checks=[
            Check(
                f"vtc: {client} waits less than a tenth of what it waits under fcfs",
                ours["vtc", client] < 0.1 * ours["fcfs", client],
                f"{ours['vtc', client]:.2f} s against {ours['fcfs', client]:.2f} s",
            )
            for client in middle
        ],
        plots=[response_plot("vtc-figure-12", "Figure 12: time to first token", _only(runs, clients), 600)],
    )


def _clients(run: Run) -> list[str]:
    by_requests = sorted(run.tenants, key=lambda name: (run.tenants[name].requests, name))
    return by_requests[MIDDLE] + by_requests[BUSIEST]


def _p50(run: Run, client: str) -> float:
    figures = run.tenants[client].ttft_s
    return 0.0 if figures is None else figures.p50


def _measured(traces: Path, policy: str) -> dict[str, float]:
    run = measured_run(traces, "real", policy)
    return {} if run is None else {client: _p50(run, client) for client in run.tenants}


def _ratio(ours: float, theirs: float | None) -> str | None:
    return None if not theirs else f"{ours / theirs:.2f}"


def _only(runs: dict[str, list[Run]], clients: Sequence[str]) -> dict[str, Run]:
    """vtc and fcfs of the first seed, with nobody but these clients on their timelines."""
    found = {}
    for policy in ("vtc", "fcfs"):
        line = timeline_of(runs[policy][0])
        waits = {client: line.response_s[client] for client in clients}
        found[policy] = replace(runs[policy][0], timeline=replace(line, response_s=waits))
    return found
