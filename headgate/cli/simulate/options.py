"""The options of `headgate simulate` on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from headgate.simulator.engines.profile import DEFAULT_ENGINE

TRACE = "FILE.csv, TENANT=FILE.csv (one of Azure's files for each tenant) or FILE.yaml."
POLICY = (
    "The engine's queue policy: fcfs, rpm:N, lcf, vtc, vtc-predict, vtc-noisy:0.5, vtc-oracle, vtc-cap:TOKENS, wsc, "
    "drr:QUANTUM, tiered:POLICY. Separate several with commas."
)
ENGINE = "Profile of step times: a name, or a profile's .yaml file."
WEIGHTS = "Weights of tenants: TENANT=1,TENANT=2,…; 1 for the others."
SERVICE = "How service is measured: weighted, tokens, flops or profiled."
WSC_WEIGHTS = "Weights of wsc for input, system and output tokens: a,b,c. Default: 1,2,1."
SEEDS = "Run each policy with this many seeds. The results are the first seed's; `spread` gives mean and sd over all."
JITTER = "Relative standard deviation of a step's time, for example 0.05."
HORIZON = "T of the service difference, in seconds. Default: the last arrival (600 for the VTC traces)."
GATE = "on or off: put the gate before the engine. Needs --tenants."
ORDER = "The gate's order: bwfq, ratio, ratio+wake, virtual-clock, virtual-clock+cap, sfq or fcfs. Default: bwfq."
TENANTS = "YAML file of the gate: slots, {weight, rate_per_s, burst, tier} of each tenant, tiers, throttling."
PREEMPTION = (
    "on or off: use the paged engine, which allocates KV blocks as tokens come. With on, tiered:POLICY evicts running "
    "requests for more urgent ones. Default: an engine that admits a request only if it can serve it to its end."
)
PREMIUM_RESERVE = "Share of the KV blocks that only premium requests may use, for example 0.3. Needs --preemption."
LEAD_MAX = (
    "Service by which a tenant may be ahead of another of its tier before its requests are evicted for the other's. "
    "Default: no limit. Needs --preemption on."
)
FLEET = "YAML file of a fleet: workers that load one of several models at a time, and SLO classes. Needs --planner."
PLANNER = (
    "Who plans the fleet: fcfs, edf, round-robin, static, shepherd, qlm or plan. Separate several with commas. "
    "Needs --fleet."
)
PROCESSES = "Parallel processes. Default: CPU count."
REPORT = "Write a page with plots to this FILE.html."
TIMING = "Also print how long the runs take on this machine."


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    trace: Annotated[list[str], Argument(help=TRACE)]
    policy: Annotated[str, Option(help=POLICY)] = "vtc"
    engine: Annotated[str, Option(help=ENGINE)] = DEFAULT_ENGINE
    weights: Annotated[str, Option(help=WEIGHTS)] = ""
    service: Annotated[str, Option(help=SERVICE)] = "weighted"
    wsc_weights: Annotated[str, Option(help=WSC_WEIGHTS)] = ""
    seeds: Annotated[int, Option(help=SEEDS, min=1, max=10_000)] = 1
    seed: Annotated[int, Option(help="The first seed.")] = 0
    jitter: Annotated[float, Option(help=JITTER)] = 0.0
    horizon: Annotated[float | None, Option(help=HORIZON)] = None
    gate: Annotated[str, Option(help=GATE)] = "off"
    order: Annotated[str | None, Option(help=ORDER)] = None
    tenants: Annotated[Path | None, Option(help=TENANTS)] = None
    preemption: Annotated[str | None, Option(help=PREEMPTION)] = None
    premium_reserve: Annotated[float | None, Option(help=PREMIUM_RESERVE)] = None
    lead_max: Annotated[float | None, Option(help=LEAD_MAX)] = None
    fleet: Annotated[Path | None, Option(help=FLEET)] = None
    planner: Annotated[str | None, Option(help=PLANNER)] = None
    processes: Annotated[int | None, Option(help=PROCESSES, min=1)] = None
    report: Annotated[Path | None, Option(help=REPORT)] = None
    timing: Annotated[bool, Option("--timing", help=TIMING)] = False
    json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False
