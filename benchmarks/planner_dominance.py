"""Whether a planner without fairness serves every tenant at least as well as headgate's own.

    python -m benchmarks.planner_dominance [--scenes NAME,… | --reported] [--random FROM:TO] [--processes N]
        [--failures]

Each scene (planner_scenes.py) is played under static, qlm, edf and plan. A row is a planner; a column of it a tenant's
part of requests with their first token in time. A tenant is entitled (marked *) if its demand over the run is no more
than its weighted max-min share of the fleet's service. `plan` is dominated by another planner

    in a tenant     if that one is better for an entitled tenant by 2 points, and worse for none, or
    in the worst    if the worst-off entitled tenant is better by 2 points under it.

`served/s`: requests over the time to the last token.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.planner_scenes import Scene, named_scenes, random_scene, reported_scenes
from dispatcher.policies.clocks import Share
from dispatcher.policies.planning.entitlement import GroupDemand, TenantDemand, entitle
from dispatcher.policies.service import WEIGHTED_TOKENS
from gpu_worker.policies.fairness.registry import make_policy
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.fleet.planners.interface import full_rate_per_s, profiles_of
from headgate.simulator.run import RunSpec
from headgate.simulator.simulate import simulate

PLANNERS = ("static", "qlm", "edf", "plan")
MARGIN = 0.02
_OWN = "plan"
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Played:
    """A scene under one planner. `in_time`: by tenant, the part of its requests."""

    planner: str
    in_time: Mapping[str, float]
    served_per_s: float
    swaps: int

    def line(self, entitled: set[str]) -> str:
        shown = (f"{name}{'*' if name in entitled else ''} {100 * part:.0f}" for name, part in self.in_time.items())
        return f"    {self.planner:7} {self.swaps:4} swaps {self.served_per_s:6.2f} served/s   {', '.join(shown)}"


def play(scene: Scene, planner: str) -> Played:
    run = simulate(RunSpec(scene.workload, "fcfs", scene.fleet, planner=planner))
    in_time = {tenant: measures.in_time for tenant, measures in sorted(run.tenants.items())}
    return Played(planner, in_time, run.served / max(run.total_time_s, 1e-9), run.swaps)


def entitled_tenants(scene: Scene) -> set[str]:
    """Return the tenants with a demand within their share of the fleet over the time of the arrivals."""
    arrivals = list(scene.workload)
    horizon_s = max(1.0, max(each.arrival_s for each in arrivals))
    demand: dict[str, float] = {}
    for each in arrivals:
        demand[each.tenant] = demand.get(each.tenant, 0.0) + WEIGHTED_TOKENS(each.input_tokens, each.output_tokens)
    demands = [
        TenantDemand(name, Share(scene.workload.weights.get(name, 1.0)), [GroupDemand("all", 1, service, 0.0)])
        for name, service in sorted(demand.items())
    ]
    given = entitle(demands, _capacity_per_s(scene), horizon_s)
    return {name for name, service in demand.items() if service <= given[name].service * (1 + _ROUNDING)}


def _capacity_per_s(scene: Scene) -> float:
    """Return the sum over workers of the mean rate of the models that it can load."""
    profiles = profiles_of(scene.workload, scene.fleet.models[0])
    rates: dict[tuple[str, str], float] = {}
    total = 0.0
    for worker in scene.fleet.workers:
        able = [model for model in worker.models if model in profiles]
        for model in able:
            if (worker.kind, model) not in rates:
                loadable = worker.models[model]
                engine = make_engine(loadable.profile, make_policy("fcfs", WEIGHTED_TOKENS))
                rates[worker.kind, model] = full_rate_per_s(engine, loadable.slots, profiles[model])
        total += sum(rates[worker.kind, model] for model in able) / max(1, len(able))
    return total


class Gap(NamedTuple):
    """What another planner is better by. `tenant`: for the best of the entitled tenants, and negative if for another it
    is worse; then it is that loss. `worst`: for the worst-off. Parts of the requests."""

    planner: str
    tenant: float
    worst: float


def gaps(runs: Sequence[Played], entitled: set[str]) -> list[Gap]:
    """Return the gap to each other planner; none if no tenant is entitled."""
    own = next(run for run in runs if run.planner == _OWN)
    found = []
    for other in runs:
        if other is own or not entitled:
            continue
        gains = [other.in_time[name] - own.in_time[name] for name in entitled]
        worst = min(other.in_time[name] for name in entitled) - min(own.in_time[name] for name in entitled)
        found.append(Gap(other.planner, max(gains) if min(gains) >= -_ROUNDING else min(gains), worst))
    return found


def distance(runs: Sequence[Played], entitled: set[str]) -> float:
    """Return the greatest gap, in points; -100 if no tenant is entitled."""
    return 100 * max((max(gap.tenant, gap.worst) for gap in gaps(runs, entitled)), default=-1.0)


def dominations(runs: Sequence[Played], entitled: set[str]) -> list[tuple[str, str, float]]:
    """Return the planners that dominate `plan`: name, in what, and by how many points."""
    found = []
    for gap in gaps(runs, entitled):
        found += [(gap.planner, "tenant", 100 * gap.tenant)] * (gap.tenant >= MARGIN)
        found += [(gap.planner, "worst", 100 * gap.worst)] * (gap.worst >= MARGIN)
    return found


def verdict(found: Sequence[tuple[str, str, float]]) -> str:
    return "; ".join(f"dominated by {name} in the {what}: {points:.0f} points" for name, what, points in found) or "–"


def _jobs(scenes: Sequence[Scene], processes: int) -> Iterator[tuple[Scene, list[Played]]]:
    pairs = [(scene, planner) for scene in scenes for planner in PLANNERS]
    with ProcessPoolExecutor(processes) as pool:
        played = pool.map(play, *zip(*pairs, strict=True))
        for scene in scenes:
            yield scene, [next(played) for _ in PLANNERS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", default="", help="names with commas; by default outsiders', or none with --random")
    parser.add_argument("--reported", action="store_true", help="the scenes of public reports in place of outsiders'")
    parser.add_argument("--random", default="", metavar="FROM:TO", help="seeds of random scenes")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--failures", action="store_true", help="print only dominated scenes")
    options = parser.parse_args()
    wanted = set(filter(None, options.scenes.split(",")))
    if options.reported:
        scenes = reported_scenes()
    elif wanted:
        scenes = [scene for scene in (*named_scenes(), *reported_scenes()) if scene.name in wanted]
    else:
        scenes = [] if options.random else named_scenes()
    if options.random:
        first, last = map(int, options.random.split(":"))
        scenes += [random_scene(seed).scene() for seed in range(first, last)]
    dominated, points = 0, 0.0
    for scene, runs in _jobs(scenes, options.processes):
        entitled = entitled_tenants(scene)
        found = dominations(runs, entitled)
        dominated += bool(found)
        points += max((each[2] for each in found), default=0.0)
        if options.failures and not found:
            continue
        print(f"{scene.name}: {verdict(found)}", flush=True)
        for run in runs:
            print(run.line(entitled))
    print(f"{dominated} of {len(scenes)} scenes dominated; mean of the worst points {points / max(1, len(scenes)):.2f}")


if __name__ == "__main__":
    main()
