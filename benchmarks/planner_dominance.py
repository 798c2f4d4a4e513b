"""Whether a planner without fairness serves every tenant at least as well as headgate's own.

    python -m benchmarks.planner_dominance [--scenes NAME,… | --reported] [--random FROM:TO] [--processes N]
        [--failures] [--without-plan] [--slower FACTOR]

Each scene (planner_scenes.py, published_scenes.py) is played under static, qlm, edf and plan. A row is a planner; a
column of it a tenant's part of requests with their first token in time. A tenant is entitled (marked *) if its demand
over the run is no more than its weighted max-min share of the fleet's service. `plan` is dominated by another planner

    in a tenant     if that one is better for an entitled tenant by 2 points, and worse for none, or
    in the worst    if the worst-off entitled tenant is better by 2 points under it.

`served/s`: requests over the time to the last token.

--slower lets each load take so many times what is believed of it at first.
--without-plan plays the gate without a planner too (`no-plan`), and gives its verdict beside that of the plan.
--failures prints dominated scenes only, with the planners that dominate. A planner is played only as long as it may
dominate: its run ends once so many requests are late that it cannot be better. The verdicts are the same.

This is the strict statement, about one draw of arrivals. planner_draws.py judges scenes over many draws, and each
planner beside the others. planner_survey.py plays thousands of scenes, and says where the plan is dominated.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from benchmarks.planner_scenes import Scene, named_scenes, random_scene, reported_scenes
from benchmarks.published_scenes import published_scenes
from dispatcher.policies.clocks import Share
from dispatcher.policies.planning.entitlement import GroupDemand, TenantDemand, entitle
from dispatcher.policies.service import WEIGHTED_TOKENS
from headgate.simulator.fleet.planners.interface import full_rate_per_s, profiles_of
from headgate.simulator.gates.spec import GateSpec
from headgate.simulator.measures.collector import FleetCollector
from headgate.simulator.requests import SimRequest
from headgate.simulator.run import RunSpec
from headgate.simulator.simulate import simulate

PLANNERS = ("static", "qlm", "edf", "plan")
WITHOUT_PLAN = "no-plan"
MARGIN = 0.02
_OWN = "plan"
_HEADGATES = {_OWN, WITHOUT_PLAN}
_ROUNDING = 1e-9
_GATE = GateSpec(1, announces_waits=False)
"""Nothing here reads an announced wait. The workers have the slots."""


@dataclass(frozen=True, slots=True)
class Played:
    """A scene under one planner. `in_time`: by tenant, the part of its `requests`."""

    planner: str
    in_time: Mapping[str, float]
    served_per_s: float
    swaps: int
    requests: Mapping[str, int] = field(default_factory=dict)

    def line(self, entitled: set[str]) -> str:
        shown = (f"{name}{'*' if name in entitled else ''} {100 * part:.0f}" for name, part in self.in_time.items())
        return f"    {self.planner:7} {self.swaps:4} swaps {self.served_per_s:6.2f} served/s   {', '.join(shown)}"


def play(scene: Scene, planner: str, collector: FleetCollector | None = None) -> Played:
    run = simulate(RunSpec(scene.workload, "fcfs", scene.fleet, planner=planner, gate=_GATE), collector)
    tenants = sorted(run.tenants.items())
    return Played(
        planner,
        {tenant: measures.in_time for tenant, measures in tenants},
        run.served / max(run.total_time_s, 1e-9),
        run.swaps,
        {tenant: measures.requests for tenant, measures in tenants},
    )


def entitled_tenants(*draws: Scene) -> set[str]:
    """Return the tenants with a demand within their share of the fleet over the time of the arrivals, in the mean over
    the draws of a scene."""
    demand: dict[str, float] = {}
    service = horizon_s = 0.0
    for scene in draws:
        found, each_service = demand_and_service(scene)
        for name, each in found.items():
            demand[name] = demand.get(name, 0.0) + each / len(draws)
        service, horizon_s = service + each_service / len(draws), horizon_s + _horizon_s(scene) / len(draws)
    weights = draws[0].workload.weights
    demands = [
        TenantDemand(name, Share(weights.get(name, 1.0)), [GroupDemand("all", 1, each, 0.0)])
        for name, each in sorted(demand.items())
    ]
    given = entitle(demands, service / horizon_s, horizon_s)
    return {name for name, each in demand.items() if each <= given[name].service * (1 + _ROUNDING)}


def demand_and_service(scene: Scene) -> tuple[dict[str, float], float]:
    """Return the demand of each tenant, and what the fleet serves in the time of the arrivals, in service units."""
    demand: dict[str, float] = {}
    for each in scene.workload:
        demand[each.tenant] = demand.get(each.tenant, 0.0) + WEIGHTED_TOKENS(each.input_tokens, each.output_tokens)
    return demand, _capacity_per_s(scene) * _horizon_s(scene)


def _horizon_s(scene: Scene) -> float:
    return max(1.0, scene.workload.last_arrival_s)


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
                rates[worker.kind, model] = full_rate_per_s(loadable.profile, loadable.slots, profiles[model])
        total += sum(rates[worker.kind, model] for model in able) / max(1, len(able))
    return total


class Gap(NamedTuple):
    """What another planner is better by. `tenant`: for the best of the entitled tenants, and negative if for another it
    is worse; then it is that loss. `worst`: for the worst-off. Parts of the requests."""

    planner: str
    tenant: float
    worst: float


def gaps(runs: Sequence[Played], entitled: set[str], of: str = _OWN) -> list[Gap]:
    """Return the gap of the planner `of` to each of its rivals that was played; none if no tenant is entitled."""
    own = next(run for run in runs if run.planner == of)
    return [gap_between(other, own, entitled) for other in runs if entitled and other.planner in rivals_of(of)]


def rivals_of(planner: str) -> list[str]:
    """Return the planners that are compared with this one: all others, but not headgate's own with each other."""
    return [each for each in PLANNERS if each != planner and not {each, planner} <= _HEADGATES]


def gap_between(other: Played, own: Played, entitled: Iterable[str], loss: float = _ROUNDING) -> Gap:
    """Return what `other` is better by. `loss`: a tenant that loses no more is not worse."""
    gains = [other.in_time[name] - own.in_time[name] for name in entitled]
    worst = min(other.in_time[name] for name in entitled) - min(own.in_time[name] for name in entitled)
    return Gap(other.planner, max(gains) if min(gains) >= -loss else min(gains), worst)


def distance(runs: Sequence[Played], entitled: set[str]) -> float:
    """Return the greatest gap, in points; -100 if no tenant is entitled."""
    return 100 * max((max(gap.tenant, gap.worst) for gap in gaps(runs, entitled)), default=-1.0)


def dominations(runs: Sequence[Played], entitled: set[str], of: str = _OWN) -> list[tuple[str, str, float]]:
    """Return the planners that dominate headgate's planner `of`: name, in what, and by how many points."""
    found = []
    for gap in gaps(runs, entitled, of):
        found += [(gap.planner, "tenant", 100 * gap.tenant)] * (gap.tenant >= MARGIN)
        found += [(gap.planner, "worst", 100 * gap.worst)] * (gap.worst >= MARGIN)
    return found


def verdict(found: Sequence[tuple[str, str, float]]) -> str:
    return "; ".join(f"dominated by {name} in the {what}: {points:.0f} points" for name, what, points in found) or "–"


def play_all(scene: Scene, planners: Sequence[str], *, only_failures: bool = False) -> list[Played]:
    """Return the runs of the planners. `only_failures`: of the plan, and of those that may dominate it."""
    if not only_failures:
        return [play(scene, planner) for planner in planners]
    own, entitled = play(scene, _OWN), entitled_tenants(scene)
    others = (play_if_better(scene, planner, own, entitled) for planner in planners if planner != _OWN)
    return [*filter(None, others), own]


def play_if_better(scene: Scene, planner: str, own: Played, entitled: set[str]) -> Played | None:
    """Play the scene as long as the planner may still dominate headgate's own run. Return None if it cannot."""
    best = _BestPossible(scene, own, entitled)
    if not best.may_dominate():
        return None
    try:
        return play(scene, planner, best)
    except _NoneBetterError:
        return None


class _NoneBetterError(Exception):
    """Ends a run whose verdict is known."""


class _BestPossible(FleetCollector):
    """What a planner can reach at best: every request in time that has not been late yet."""

    def __init__(self, scene: Scene, own: Played, entitled: set[str]) -> None:
        super().__init__(WEIGHTED_TOKENS, scene.workload.last_arrival_s)
        self._own, self._requests = own, own.requests
        self._in_time = {name: own.requests[name] for name in entitled}

    def may_dominate(self) -> bool:
        """Return whether `gaps` may still find a domination. The parts of requests only fall as the run goes on."""
        if not self._in_time:
            return False
        best = Played("", {name: count / self._requests[name] for name, count in self._in_time.items()}, 0.0, 0)
        gap = gap_between(best, self._own, set(self._in_time))
        return gap.tenant >= MARGIN or gap.worst >= MARGIN

    def on_served(self, request: SimRequest) -> None:
        super().on_served(request)
        if not request.is_in_time:
            self._note_late(request.tenant)

    def on_rejected(self, request: SimRequest) -> None:
        super().on_rejected(request)
        self._note_late(request.tenant)

    def _note_late(self, tenant: str) -> None:
        if tenant in self._in_time:
            self._in_time[tenant] -= 1
            if not self.may_dominate():
                raise _NoneBetterError


def slow_down(scene: Scene, factor: float) -> Scene:
    """Return the scene where each load takes `factor` times what is believed."""
    workers = []
    for worker in scene.fleet.workers:
        able = {name: replace(each, actual_swap_s=factor * each.load_s) for name, each in worker.models.items()}
        workers.append(replace(worker, models=able))
    return replace(scene, fleet=replace(scene.fleet, workers=workers))


def _play_scenes(
    scenes: Sequence[Scene], planners: Sequence[str], processes: int, only_failures: bool
) -> Iterator[tuple[Scene, list[Played]]]:
    with ProcessPoolExecutor(processes) as pool:
        played = pool.map(partial(play_all, planners=planners, only_failures=only_failures), scenes)
        yield from zip(scenes, played, strict=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", default="", help="names with commas; by default outsiders', or none with --random")
    parser.add_argument(
        "--reported",
        action="store_true",
        help="the scenes of reports and published workloads",
    )
    parser.add_argument("--random", default="", metavar="FROM:TO", help="seeds of random scenes")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--failures", action="store_true", help="print only dominated scenes")
    parser.add_argument("--slower", type=float, default=1.0, help="loads take so many times what is believed")
    parser.add_argument("--without-plan", action="store_true", help="also the gate without a planner")
    options = parser.parse_args()
    wanted = set(filter(None, options.scenes.split(",")))
    if options.reported:
        scenes = [*reported_scenes(), *published_scenes()]
    elif wanted:
        scenes = [scene for scene in (*named_scenes(), *reported_scenes(), *published_scenes()) if scene.name in wanted]
    else:
        scenes = [] if options.random else named_scenes()
    if options.random:
        first, last = map(int, options.random.split(":"))
        scenes += [random_scene(seed).scene() for seed in range(first, last)]
    scenes = [slow_down(scene, options.slower) for scene in scenes]
    judged = (_OWN, WITHOUT_PLAN) if options.without_plan else (_OWN,)
    planners = (*PLANNERS, *judged[1:])
    points: dict[str, list[float]] = {own: [] for own in judged}
    for scene, runs in _play_scenes(scenes, planners, options.processes, options.failures and len(judged) == 1):
        entitled = entitled_tenants(scene)
        found = {own: dominations(runs, entitled, own) for own in judged}
        for own, each in found.items():
            points[own].append(max((gap[2] for gap in each), default=0.0))
        if options.failures and not any(found.values()):
            continue
        verdicts = [f"{own} {verdict(found[own])}" for own in judged]
        print(f"{scene.name}: {'; '.join(verdicts) if len(judged) > 1 else verdict(found[_OWN])}", flush=True)
        for run in runs:
            print(run.line(entitled))
    for own, worst in points.items():
        dominated, mean = sum(map(bool, worst)), sum(worst) / max(1, len(worst))
        which = f"{own}: " if len(judged) > 1 else ""
        print(f"{which}{dominated} of {len(scenes)} scenes dominated; mean of the worst points {mean:.2f}")


if __name__ == "__main__":
    main()
