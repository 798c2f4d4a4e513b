"""Simulate the service difference when tenants' requests preempt each other.

`python -m benchmarks.fairness_preemption [--seeds N] [--traces DIR] [--json]`

The traces are `overload` and `real` of the VTC paper, with the step times of its A10G and Llama-2-7b. Rows:

    vtc, vtc-oracle   the paper's server, which admits a request only if it can serve it to its end
                      (headgate/simulator/engines/separate_prefill.py); the oracle charges true lengths beforehand
    paged             tiered:vtc with one tier, on the engine that takes KV blocks as tokens come and evicts when none
                      are left (headgate/simulator/engines/paged.py); no request is evicted for another tenant
    lead N            as paged, and running requests are evicted for a tenant that is N service units behind. If the
                      engine lacks blocks, it evicts from the tenant with the most service. Victims are recomputed, or
                      swapped where that is cheaper
    every N           admission every N decode steps, instead of every 10 as in the paper's server

Only vtc-oracle knows lengths. Paged rows leave 10 % of the blocks to running requests (`watermark`; vLLM's is 1 %), and
ranks depend neither on waits nor on shares. The difference is the paper's
(headgate/simulator/measures/service_difference.py), where a request's service is spread evenly from its first token to
its last. "by tokens" sums each prompt and token at the time of its charge, which an eviction in between does not blur.
Swapping: 524,288 bytes a token (32 layers x 32 heads x 128 x 2 x 2 bytes), 12 GB/s each way, half of the data sheet's
PCIe 4.0 x16. Figures are means and standard deviations over seeds with jittered steps.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

from dispatcher.policies.service import WEIGHTED_TOKENS
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.tiers import TierSettings
from headgate.simulator.drive import drive
from headgate.simulator.engines.interface import Jitter, SimulatedEngine
from headgate.simulator.engines.paged import PagedEngine
from headgate.simulator.engines.profile import EngineProfile, load_profile
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.measures.collector import TierCollector
from headgate.simulator.measures.service_difference import HALF_WINDOW_S, POINTS, WARM_UP_S
from headgate.simulator.parallel import Processes
from headgate.simulator.requests import SimRequest
from headgate.workloads.sources import Workload, open_workload

TRACES = Path("../shared/traces/vtc")
NAMES = ("overload", "real")
HORIZON_S = 600.0
LEADS = (250.0, 500.0, 1000.0, 2000.0, 4000.0, 8000.0)
WATERMARK = 0.1
JITTER = 0.05
SEEDS = 5
SWAP = {
    "kv_bytes_per_token": 524_288.0,
    "copy_out_bytes_per_s": 12e9,
    "copy_in_bytes_per_s": 12e9,
    "copy_base_s": 0.001,
    "swap_bytes": 32e9,
}


@dataclass(frozen=True)
class Case:
    """`lead_max` None: the paper's server with `policy`; infinity: paged, without evictions for another tenant."""

    trace: str
    policy: str
    lead_max: float | None = None
    swap: bool = False
    watermark: float = WATERMARK
    steps: int = 10
    seed: int = 0

    @property
    def name(self) -> str:
        if self.lead_max is None:
            return self.policy
        if self.lead_max == inf:
            return "paged" if self.watermark == WATERMARK else f"paged, {self.watermark:.0%} left"
        every = f", every {self.steps}" if self.steps != load_profile().steps_between_admissions else ""
        return f"lead {self.lead_max:g}{', swap' if self.swap else ''}{every}"


@dataclass(frozen=True)
class Found:
    avg: float
    max: float
    tokens_avg: float
    tokens_max: float
    tokens_per_s: float
    planned_per_min: float = 0.0
    native_per_min: float = 0.0
    recomputed_tokens: float = 0.0


CASES: tuple[tuple[Any, ...], ...] = (
    *(("vtc", None, False, WATERMARK), ("vtc-oracle", None, False, WATERMARK)),
    *(("tiered:vtc", inf, False, 0.01), ("tiered:vtc", inf, False, WATERMARK)),
    *(("tiered:vtc", lead, swap, WATERMARK) for swap in (False, True) for lead in LEADS),
    *(("tiered:vtc", 250.0, swap, WATERMARK, steps) for swap in (False, True) for steps in (1, 4)),
)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fairness_preemption", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--traces", type=Path, default=TRACES, help=f"a folder with {' and '.join(NAMES)} ({TRACES})")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    options = parser.parse_args()
    paths = [str(options.traces / f"{name}.csv") for name in NAMES]
    if missing := [path for path in paths if not Path(path).is_file()]:
        sys.stdout.write(f"skipped: no {missing[0]}\n")
        return 0
    cases = [Case(path, *of) for path in paths for of in CASES]
    seeded = [replace(case, seed=seed) for case in cases for seed in range(1, options.seeds + 1)]
    with Processes(None) as pool:
        found = pool.map(played, seeded)
    rows = {case: found[at * options.seeds :][: options.seeds] for at, case in enumerate(cases)}
    if options.json:
        by_trace = {
            name: {c.name: mean(runs) for c, runs in rows.items() if Path(c.trace).stem == name} for name in NAMES
        }
        sys.stdout.write(json.dumps({"fairness_preemption": by_trace}) + "\n")
    else:
        sys.stdout.write("\n".join(table(name, rows, options.seeds) for name in NAMES))
    return 0


def played(case: Case) -> Found:
    workload = open_workload([case.trace])
    jitter = Jitter(Random(f"{case.seed} steps"), JITTER)
    engine: SimulatedEngine
    if case.lead_max is None:
        engine = make_engine(load_profile(), make_policy(case.policy), jitter=jitter)
    else:
        settings = TierSettings(lead_max=case.lead_max, aging_per_s=0.0, deficit_factor=0.0)
        policy = make_policy(case.policy, tiers=settings)
        engine = PagedEngine(profile_of(case), policy, jitter=jitter)
    collector = TierCollector(WEIGHTED_TOKENS, HORIZON_S)
    watched = Watched(engine)
    drive(workload, watched, collector)
    difference = collector.difference()
    assert difference is not None
    by_tokens = watched.differences(workload)
    figures = Found(
        *(difference.avg, difference.max, fmean(by_tokens), max(by_tokens), collector.tokens / collector.total_time_s)
    )
    if not isinstance(engine, PagedEngine):
        return figures
    minutes = collector.total_time_s / 60
    return replace(
        figures,
        planned_per_min=engine.counts.preemptions.total() / minutes,
        native_per_min=engine.counts.native / minutes,
        recomputed_tokens=engine.counts.recomputed_tokens,
    )


def profile_of(case: Case) -> EngineProfile:
    changes = {"watermark": case.watermark, "steps_between_admissions": case.steps, **(SWAP if case.swap else {})}
    return load_profile().model_copy(update=changes)


class Watched:
    """An engine that records the service of each tenant at the edges of the paper's windows."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine
        every_s = (HORIZON_S - WARM_UP_S) / (POINTS + 1)
        self._middles_s = [WARM_UP_S + every_s * (point + 1) for point in range(POINTS)]
        edges = {middle + side * HALF_WINDOW_S for middle in self._middles_s for side in (-1, 1)}
        self._edges_s = sorted(edges, reverse=True)
        self._received: dict[float, dict[str, float]] = {}

    @property
    def now_s(self) -> float:
        return self._engine.now_s

    def submit(self, request: SimRequest, at_s: float) -> bool:
        return self._engine.submit(request, at_s)

    def advance(self, until_s: float) -> list[SimRequest]:
        while self._edges_s and self._edges_s[-1] < until_s:
            if finished := self._engine.advance(self._edges_s[-1]):
                return finished
            received = self._engine.service_by_tenant
            self._received[self._edges_s.pop()] = {tenant: got.service for tenant, got in received.items()}
        return self._engine.advance(until_s)

    def differences(self, workload: Workload) -> list[float]:
        return [self._difference(middle_s, workload) for middle_s in self._middles_s]

    def _difference(self, middle_s: float, workload: Workload) -> float:
        first_s, last_s = middle_s - HALF_WINDOW_S, middle_s + HALF_WINDOW_S
        asked = dict.fromkeys(workload.tenants, 0.0)
        for arrival in workload:
            if first_s <= arrival.arrival_s < last_s:
                asked[arrival.tenant] += WEIGHTED_TOKENS(arrival.input_tokens, arrival.output_tokens)
        before, after = self._received[first_s], self._received[last_s]
        served = {tenant: after.get(tenant, 0.0) - before.get(tenant, 0.0) for tenant in asked}
        highest = max(served.values())
        window_s = 2 * HALF_WINDOW_S
        return sum(min(highest - served[t], abs(asked[t] - served[t])) / window_s for t in asked)


def mean(runs: Sequence[Found]) -> dict[str, float]:
    return {name: fmean(getattr(run, name) for run in runs) for name in Found.__dataclass_fields__}


def table(name: str, rows: dict[Case, list[Found]], seeds: int) -> str:
    of_trace = {case.name: runs for case, runs in rows.items() if Path(case.trace).stem == name}
    oracle = mean(of_trace["vtc-oracle"])["tokens_per_s"]
    headings = ("avg", "max", "by tokens avg", "max", "tokens/s", "of oracle's", "evicted/min", "native/min", "again")
    lines = [
        f"{name}: service difference, service units a second; {seeds} seeds",
        f"{'':24}" + "".join(f"{heading:>15}" for heading in headings),
    ]
    for case, runs in of_trace.items():
        means = mean(runs)
        cells = (
            *(spread(runs, "avg"), spread(runs, "max"), spread(runs, "tokens_avg"), spread(runs, "tokens_max")),
            *(f"{means['tokens_per_s']:.1f}", f"{means['tokens_per_s'] / oracle:.1%}"),
            *(f"{means['planned_per_min']:.1f}", f"{means['native_per_min']:.1f}"),
            f"{means['recomputed_tokens']:,.0f}",
        )
        lines.append(f"{case:24}" + "".join(f"{cell:>15}" for cell in cells))
    return "\n".join(lines) + "\n"


def spread(runs: Sequence[Found], figure: str) -> str:
    values = [getattr(run, figure) for run in runs]
    return f"{fmean(values):.1f} ± {stdev(values) if len(values) > 1 else 0.0:.1f}"


if __name__ == "__main__":
    sys.exit(main())
