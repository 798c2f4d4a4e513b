"""What it changes that tenants pay for the swaps of models that they need (dispatcher/shard/swapping.py).

    python -m benchmarks.swap_charges

Each scene is played with the planner `plan`, without payment and with all of it (`swap_charge` 0 and 1). `beside`: two
equal tenants in an overload of one model on one worker, of which `swapper` also sends a request for another model every
10 s; the means of eight seeds. `rare_short` and `two_models` are scenes of planner_scenes.py, in which no two tenants
have a model in common. `service`: of the served requests; `paid`: for swaps, beside it; both in service units.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from random import Random
from statistics import fmean

from benchmarks.planner_scenes import FAST, Scene, named_scenes
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.fleet.spec import FleetSpec, Loadable, WorkerSpec
from headgate.simulator.gates.spec import GateSpec
from headgate.simulator.run import RunSpec
from headgate.simulator.simulate import simulate
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload

_PER_S, _SECONDS, _SEEDS = 5.0, 200, 8
_NAMED = ("rare_short", "two_models")


def scenes() -> list[list[Scene]]:
    """Return the scenes, each with all its seeds."""
    return [[_beside(seed) for seed in range(_SEEDS)], *([each] for each in named_scenes() if each.name in _NAMED)]


def _beside(seed: int) -> Scene:
    """Return the scene of requests with equal lengths, on vLLM's chunked prefill."""
    random = Random(f"beside {seed}")
    arrivals = [
        Arrival(at_s, tenant, 200, 200, model="a")
        for tenant in ("quiet", "swapper")
        for at_s in accumulate(random.expovariate(_PER_S) for _ in range(round(_PER_S * _SECONDS)))
    ]
    arrivals += [Arrival(at_s + 3.0, "swapper", 100, 20, model="b") for at_s in range(0, _SECONDS, 10)]
    arrivals.sort(key=lambda each: each.arrival_s)
    able = {model: Loadable(load_profile(FAST), 3.0, 32) for model in "ab"}
    return Scene(
        "beside",
        FleetSpec([WorkerSpec("w", "k", able, "a")], default_class="interactive"),
        ListWorkload("beside", arrivals),
    )


def rows(seeds: list[Scene]) -> Iterator[str]:
    """Yield a row for each tenant, with the means over the seeds of a scene."""
    for charge in (0.0, 1.0):
        gate = GateSpec(1, swap_charge=charge)
        specs = [RunSpec(each.workload, "fcfs", each.fleet, planner="plan", gate=gate) for each in seeds]
        runs = [simulate(spec) for spec in specs]
        for name in runs[0].tenants:
            each = [run.tenants[name] for run in runs]
            first_s = fmean(part.ttft_s.p50 for part in each if part.ttft_s is not None)
            paid = fmean(run.swap_charges.get(name, 0.0) for run in runs)
            yield (
                f"{seeds[0].name:11} {charge:g}  {fmean(run.swaps for run in runs):5.1f} swaps  {name:10} "
                f"{100 * fmean(part.in_time for part in each):5.1f} % in time  first token P50 {first_s:6.2f} s  "
                f"service {fmean(part.service for part in each):10,.0f}  paid {paid:9,.0f}"
            )


def main() -> None:
    for seeds in scenes():
        for row in rows(seeds):
            print(row, flush=True)


if __name__ == "__main__":
    main()
