"""How often a prompt may rest beside more urgent decodes, and what shedding then costs.

`python -m benchmarks.step_rests [--seeds N]`

Plays the mixed traffic of docs/evidence.md (`preemption-mixed`), with preemption and with shedding too, for several
values of RESTS_MAX (gpu_worker/policies/step_tokens.py). `lost`: the part of the tokens per second that shedding costs.
The P99s are of first tokens, with shedding.
"""

from __future__ import annotations

import argparse
import sys

from gpu_worker.policies import step_tokens
from headgate.evidence.document import Setting
from headgate.evidence.preemption import mixed, scene

RESTS = (step_tokens.RESTS_MAX, 7, 3)
SEEDS = 10
_SETTINGS = {name: mixed.SETTINGS[name] for name in ("+ preemption", "+ SLO")}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_rests", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    options = parser.parse_args()
    sys.stdout.write("| rests | lost | refused | standard P99 | premium P99 |\n| ---: | ---: | ---: | ---: | ---: |\n")
    for rests in RESTS:
        sys.stdout.write(play_rests(rests, options.seeds) + "\n")
        sys.stdout.flush()
    return 0


def play_rests(rests: int, seeds: int) -> str:
    """Return the row of one value. It is set in this process alone, so the runs are played here."""
    step_tokens.RESTS_MAX = rests
    profile = scene.load_engine()
    capacity = scene.capacity_per_s(profile)
    workloads = [mixed.draw_traffic(seed, capacity, mixed.SECONDS) for seed in range(seeds)]
    runs = scene.play(
        Setting(lambda function, jobs: list(map(function, jobs))),
        workloads,
        _SETTINGS,
        dict.fromkeys(_SETTINGS, profile),
    )
    preempting, shedding = runs["+ preemption"], runs["+ SLO"]
    lost = 1 - scene.tokens_per_s(shedding) / scene.tokens_per_s(preempting)
    refused = sum(run.rejections.get("shed", 0) for run in shedding) / sum(run.requests for run in shedding)
    p99s = " | ".join(scene.ms(scene.p99_ttft_s(shedding, tier)) for tier in ("standard", "premium"))
    return f"| {rests} | {lost:.1%} | {refused:.1%} | {p99s} |"


if __name__ == "__main__":
    sys.exit(main())
