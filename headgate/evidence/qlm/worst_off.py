"""More models than workers, a tenant each: what the worst-off tenant gets. A partition leaves one tenant without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from dispatcher.policies.planning.slo import SloClass
from headgate.evidence.document import Cell, Check, Section, Setting, Table, experiment
from headgate.evidence.qlm.scenes import MISTRAL, RequestStream, fleet, percent, played, workload
from headgate.simulator.fleet.spec import FleetSpec
from headgate.simulator.run import Run
from headgate.workloads.sources import Workload

_PLANNERS = ("static", "qlm", "edf", "plan")
_WORKERS, _MODELS = 3, 4
_AHEAD = {"overload": 0.10, "short due times": 0.10, "dear swaps": 0.0}
"""The worst-off tenant must be better off by so much than under every other planner, in the mean of the seeds. The
first two were written before the first run, and the third scene came after them, but all were claims on one seed. In
the third seed of the overload it has 4.1 % under plan and 4.4 % under qlm."""
_SEEDS_MAX = 3


def _scene(
    name: str, seed: int, due_s: float, swap_s: float, per_s: float, seconds: float
) -> tuple[Workload, FleetSpec]:
    """Return four tenants with a model each, which all send `per_s` requests a second."""
    workers = fleet(_WORKERS, {f"model-{number}": (MISTRAL[0], swap_s) for number in range(1, _MODELS + 1)}).workers
    streams = [
        RequestStream(f"tenant-{number}", f"model-{number}", "chat", round(per_s * seconds), per_s)
        for number in range(1, _MODELS + 1)
    ]
    return workload(name, streams, seed=seed), FleetSpec(workers, [SloClass("chat", due_s)], "chat")


_SCENES: Mapping[str, tuple[float, float, float, float]] = {
    "overload": (20.0, 3.0, 16.5, 150.0),
    "short due times": (5.0, 2.0, 3.5, 200.0),
    "dear swaps": (60.0, 15.0, 10.0, 200.0),
}
"""Seconds to the first token and of a swap, requests a second of each tenant, and seconds of arrivals."""


@experiment("qlm-worst-off", "More models than workers: the worst-off tenant", "beyond QLM's evaluation")
def worst_off(setting: Setting) -> Section:
    seeds = range(1, min(setting.seeds, _SEEDS_MAX) + 1)
    scenes = {(name, seed): _scene(name, seed, *of_name) for name, of_name in _SCENES.items() for seed in seeds}
    runs = played(setting, scenes, _PLANNERS)
    worst = {
        (name, planner): [min(each.in_time for each in runs[(name, seed), planner].tenants.values()) for seed in seeds]
        for name in _SCENES
        for planner in _PLANNERS
    }
    return Section(
        text=(
            f"Four tenants of equal weight on {_WORKERS} workers, each with a model of its own and the same rate. "
            "*overload*: 1.1 times what the workers serve, 20 s to the first token, swaps of 3 s. *short due times*: a "
            "quarter of it, 5 s to the first token, swaps of 2 s. *dear swaps*: two thirds, 60 s, swaps of 15 s.",
        ),
        tables=[
            Table(
                "In time: the worst-off and the best-off tenant, and swaps", ("scene", "seed", *_PLANNERS), _rows(runs)
            )
        ],
        checks=[_check(name, {planner: worst[name, planner] for planner in _PLANNERS}) for name in _SCENES],
    )


def _rows(runs: Mapping[tuple[tuple[str, int], str], Run]) -> list[tuple[Cell, ...]]:
    scenes = dict.fromkeys(scene for scene, _ in runs)
    return [(*scene, *(_cell(runs[scene, planner]) for planner in _PLANNERS)) for scene in scenes]


def _cell(run: Run) -> str:
    parts = [each.in_time for each in run.tenants.values()]
    return f"{percent(min(parts))}, {percent(max(parts))}, {run.swaps}"


def _check(scene: str, worst: Mapping[str, Sequence[float]]) -> Check:
    means = {planner: fmean(of_seeds) for planner, of_seeds in worst.items()}
    others, ahead = max(part for planner, part in means.items() if planner != "plan"), _AHEAD[scene]
    by = f"at least {100 * ahead:.0f} points better off" if ahead else "no worse off"
    return Check(
        f"{scene}: the worst-off tenant is {by} than under any other planner, in the mean of the seeds",
        means["plan"] >= others + ahead,
        ", ".join(f"{planner} {percent(part)}" for planner, part in means.items()),
    )
