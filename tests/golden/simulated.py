"""The golden files of the simulator: what `headgate simulate --json` prints for single engines, gates and fleets."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from headgate.cli import app

WORKLOADS, TENANTS = "examples/workloads", "--gate on --tenants examples/tenants.yaml"
RUNS = {
    "engines": f"{WORKLOADS}/flood.yaml --policy fcfs,rpm:60,vtc,drr:2000",
    "paged": f"{WORKLOADS}/tiers.yaml --policy tiered:vtc --preemption on",
    "gate-fcfs": f"{WORKLOADS}/flood.yaml --policy fcfs --order fcfs {TENANTS}",
    "gate-ratio": f"{WORKLOADS}/bursts.yaml --policy fcfs --order ratio {TENANTS}",
    "throttled": f"{WORKLOADS}/interactions.yaml --policy wsc {TENANTS}",
    "fleets": f"{WORKLOADS}/models.yaml --fleet examples/simulated-fleet.yaml --planner edf,plan",
}


def make_run(name: str) -> str:
    """Return the JSON of a run, one value a line, so that a difference is easy to read."""
    ended = CliRunner().invoke(app, ["simulate", *RUNS[name].split(), "--json"], catch_exceptions=False)
    if ended.exit_code:
        raise AssertionError(ended.output)
    return json.dumps(json.loads(ended.stdout), indent=1, ensure_ascii=False) + "\n"
