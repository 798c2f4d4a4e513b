"""Simulate mixed traffic beyond the capacity in five settings.

`python -m benchmarks.tiers_mixed [--seeds N] [--json]`

A 70B model on eight A100 (the profile a100x8-llama3-70b), with a KV cache as small as in the scene of
docs/preemption-design.md: 64 requests of the usual length fill it. 20 % of the requests are premium, 40 % standard,
40 % background, with four tenants each. Arrivals are Poisson, prompts and outputs lognormal. Of each 30 s, the rate is
0.8 times the capacity in the first 22 and 1.25 times in the last 8. The capacity, in requests a second, is measured
first, with all requests at once. Lengths, pool and phases were chosen so that FIFO comes near the source's figure: only
the orders and ratios of the rows are evidence.

    FIFO           first come, first served
    priority       tiers by effective rank, VTC within; no request is evicted for another
    + preemption   running requests are evicted for more urgent ones
    + SLO          + preemption, and background, then standard, is shed while the tiers above are at risk
    + reserve      + preemption, and 30 % of the KV blocks are reserved for premium
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from statistics import fmean

from gpu_worker.policies.tiers import TierSettings
from headgate.evidence.preemption import mixed, scene
from headgate.simulator.measures.collector import Scheduling
from headgate.simulator.parallel import Processes
from headgate.simulator.run import Run, RunSpec
from headgate.simulator.simulate import simulate

SECONDS = 600.0
SEEDS = 5
SETTINGS: scene.Settings = {**mixed.SETTINGS, "+ reserve": ("tiered:vtc", TierSettings(premium_reserve=0.3), None)}
SOURCE = {
    "FIFO": ("2100 ms", "72.0%", "4,200"),
    "priority": ("280 ms", "98.1%", "4,100"),
    "+ preemption": ("195 ms", "99.6%", "3,950"),
    "+ SLO": ("185 ms", "99.9%", "3,900"),
}
"""Premium P99 TTFT, premium attainment, tokens/s as the source reports them."""
HEADINGS = (
    *("premium P99", "source", "standard P99", "background P99", "premium", "source", "standard", "tokens/s", "source"),
    *("evicted/min", "native/min", "refused"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiers_mixed", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    profile = scene.load_engine()
    capacity = scene.capacity_per_s(profile)
    specs = [
        RunSpec(
            mixed.draw_traffic(seed, capacity, options.seconds),
            policy,
            profile,
            tiers=tiers,
            shedding=shedding,
            seed=seed,
        )
        for policy, tiers, shedding in SETTINGS.values()
        for seed in range(options.seeds)
    ]
    with Processes(None) as pool:
        runs = pool.map(simulate, specs)
    rows = {name: row(runs[at * options.seeds :][: options.seeds]) for at, name in enumerate(SETTINGS)}
    if options.json:
        sys.stdout.write(json.dumps({"capacity_per_s": capacity, "tiers_mixed": rows}) + "\n")
    else:
        sys.stdout.write(table(rows, capacity, options.seeds))
    return 0


def row(runs: Sequence[Run]) -> dict[str, float]:
    """Means over seeds. Seconds, parts of one, tokens a second, times a minute."""
    summaries = [run.scheduling for run in runs if run.scheduling is not None]
    means = {f"{tier}_p99_s": fmean(p99_s(one, tier) for one in summaries) for tier in dict.fromkeys(mixed.TIERS)}
    for tier in ("premium", "standard"):
        means[f"{tier}_attained"] = fmean(one.tiers[tier].attainment or 0.0 for one in summaries)
    means["tokens_per_s"] = fmean(run.throughput_tokens_per_s for run in runs)
    means["native_per_min"] = fmean(one.preemptions_per_min["native"] for one in summaries)
    all_per_min = fmean(sum(one.preemptions_per_min.values()) for one in summaries)
    means["preemptions_per_min"] = all_per_min - means["native_per_min"]
    means["swapped_per_min"] = fmean(one.preemptions_per_min["swap"] for one in summaries)
    means["refused"] = fmean(run.rejected / run.requests for run in runs)
    return means


def p99_s(one: Scheduling, tier: str) -> float:
    values = one.tiers[tier].ttft_s
    return math.nan if values is None else values.p99


def table(rows: dict[str, dict[str, float]], capacity: float, seeds: int) -> str:
    lines = [
        f"capacity {capacity:.2f} requests a second; means over {seeds} seeds",
        f"{'':13}" + "".join(f"{heading:>15}" for heading in HEADINGS),
    ]
    for name, means in rows.items():
        source = SOURCE.get(name, ("–", "–", "–"))
        cells = (
            *(
                scene.ms(means["premium_p99_s"]),
                source[0],
                scene.ms(means["standard_p99_s"]),
                scene.ms(means["background_p99_s"]),
            ),
            *(f"{means['premium_attained']:.1%}", source[1], f"{means['standard_attained']:.1%}"),
            *(f"{means['tokens_per_s']:,.0f}", source[2]),
            *(f"{means['preemptions_per_min']:.1f}", f"{means['native_per_min']:.1f}", f"{means['refused']:.1%}"),
        )
        lines.append(f"{name:13}" + "".join(f"{cell:>15}" for cell in cells))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
