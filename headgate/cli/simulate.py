"""`headgate simulate`: what a policy would do with a workload, in virtual time."""

from __future__ import annotations

import json as json_module
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from headgate.cli.progress import progress
from headgate.cli.simulate_options import SimulateOptions, checked
from headgate.cli.simulate_table import print_tables
from headgate.simulator.engines.profile import DEFAULT_ENGINE
from headgate.simulator.gates.run import GatedSpec, simulate_gated
from headgate.simulator.measures.summary import as_json, spread_of
from headgate.simulator.parallel import Processes
from headgate.simulator.run import Run

TRACE = "FILE.csv, TENANT=FILE.csv (one of Azure's files a tenant) or FILE.yaml."
POLICY = (
    "The engine's queue: fcfs, rpm:N, lcf, vtc, vtc-predict, vtc-noisy:0.5, vtc-oracle, vtc-cap:TOKENS, wsc, "
    "drr:QUANTUM, tiered:POLICY; several with commas."
)
PREEMPTION = (
    "on or off: a paged engine, which takes KV blocks as tokens come; with on, tiered:POLICY evicts running requests "
    "for more urgent ones. Not said: an engine that admits whom it can serve to the end."
)
SEEDS = "Run each policy with so many seeds: a run's figures are the first seed's, `spread` has mean and sd over all."


def simulate(
    trace: Annotated[list[str], typer.Argument(help=TRACE)],
    policy: Annotated[str, typer.Option(help=POLICY)] = "vtc",
    engine: Annotated[str, typer.Option(help="The time model: a name, or a profile's .yaml file.")] = DEFAULT_ENGINE,
    weights: Annotated[str, typer.Option(help="TENANT=1,TENANT=2,…; 1 for the others.")] = "",
    service: Annotated[str, typer.Option(help="What service is: weighted, tokens, flops or profiled.")] = "weighted",
    wsc_weights: Annotated[str, typer.Option(help="a,b,c of wsc: input, system and output tokens; else 1,2,1.")] = "",
    seeds: Annotated[int, typer.Option(help=SEEDS, min=1, max=10_000)] = 1,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    jitter: Annotated[float, typer.Option(help="Standard deviation of a step's time, relative: 0.05.")] = 0.0,
    horizon: Annotated[
        float | None,
        typer.Option(help="T of the service difference, in seconds; else the last arrival (600 for the VTC traces)."),
    ] = None,
    gate: Annotated[str, typer.Option(help="on: the gate before the engine; needs --tenants.")] = "off",
    order: Annotated[str | None, typer.Option(help="The gate's: bwfq, ratio, virtual-clock, sfq or fcfs.")] = None,
    tenants: Annotated[
        Path | None, typer.Option(help="YAML: slots, and {weight, rate_per_s, burst, tier} of each tenant.")
    ] = None,
    preemption: Annotated[str | None, typer.Option(help=PREEMPTION)] = None,
    premium_reserve: Annotated[
        float | None, typer.Option(help="Share of the KV blocks that only premium may take: 0.3. Needs --preemption.")
    ] = None,
    lead_max: Annotated[
        float | None,
        typer.Option(
            help="Service by which a tenant may lead another of its tier before it is evicted for it; else any. "
            "Needs --preemption on."
        ),
    ] = None,
    processes: Annotated[int | None, typer.Option(help="At once; one a core where it is not said.", min=1)] = None,
    report: Annotated[Path | None, typer.Option(help="Write a page with plots to this FILE.html.")] = None,
    timing: Annotated[bool, typer.Option("--timing", help="How long the runs took on this machine.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Simulate a workload under one policy or several: the project's own policies, with a model of the GPU.

    The same arguments give the same bytes (but for --timing).
    """
    asked = checked(
        SimulateOptions(
            traces=tuple(trace), policies=policy, engine=engine, weights=weights, service=service,
            wsc_weights=wsc_weights, seeds=seeds, seed=seed, jitter=jitter, horizon_s=horizon, gate=gate, order=order,
            tenants=tenants, report=report, timing=timing, preemption=preemption, premium_reserve=premium_reserve,
            lead_max=lead_max,
        )
    )  # fmt: skip
    for note in asked.notes:
        sys.stderr.write(f"note: {note}\n")
    runs = _run(asked.specs, processes)
    by_policy = [runs[start : start + seeds] for start in range(0, len(runs), seeds)]
    if report is not None:
        from headgate.simulator.report import page

        page.write(report, by_policy)
    if json:
        _print_json(by_policy, asked.gate_told)
    else:
        print_tables(by_policy)


def _run(specs: Sequence[GatedSpec], processes: int | None) -> list[Run]:
    with progress("simulating") as shown, Processes(processes, on_done=shown) as pool:
        return pool.map(simulate_gated, specs)


def _print_json(by_policy: Sequence[Sequence[Run]], gate: dict[str, Any]) -> None:
    told = [
        {**as_json(runs[0]), **_scheduling(runs[0]), **gate, **({"spread": spread_of(runs)} if len(runs) > 1 else {})}
        for runs in by_policy
    ]
    sys.stdout.write(json_module.dumps(_finite({"runs": told}), allow_nan=False) + "\n")


def _scheduling(run: Run) -> dict[str, Any]:
    return {} if run.scheduling is None else {"scheduling": run.scheduling.as_json()}


def _finite(value: Any) -> Any:
    """JSON has no word for infinity."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
