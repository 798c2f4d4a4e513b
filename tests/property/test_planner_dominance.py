"""No planner without fairness serves the entitled tenants better than headgate's own: where it holds, and how far not.

The statement: in no scene is static, qlm or edf better for an entitled tenant by 2 points and worse for none, and the
worst-off entitled tenant is no worse than under any of them. It does not hold in every random scene, for reasons that
benchmarks/results/planner_dominance.md has, and no planner without foresight could keep it (benchmarks/twin_scenes.py).
These tests bound where it fails, so that a change that widens it is seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from benchmarks.planner_dominance import (
    MARGIN,
    PLANNERS,
    WITHOUT_PLAN,
    Played,
    distance,
    dominations,
    entitled_tenants,
    play,
    play_all,
)
from benchmarks.planner_scenes import Scene, SceneShape, named_scenes, random_scene, vary
from benchmarks.planner_search import WORST, judge, read_shapes
from benchmarks.twin_scenes import LAST_SWAP_S, judge_all, twin_scenes
from headgate.simulator.fleet.planners.interface import Action
from headgate.simulator.fleet.planners.plan import GateAlone
from headgate.simulator.fleet.spec import read_fleet
from headgate.simulator.run import RunSpec
from headgate.simulator.simulate import simulate
from headgate.workloads.sources import ListWorkload, open_workload
from tests.support.duration import at_depth
from tests.support.simulator.fleets import TRACES

CASES = TRACES.parent / "cases" / "planning"
SEEDS = range(at_depth(40, 400))
DOMINATED_MAX = 0.3
"""11 of the 40 scenes are, with a mean of 3.4 points over all. The results have the reasons: partitions, which are made
with the knowledge of all arrivals to come, swaps that the bound on waiting orders, and tenants of few requests."""
MEAN_MAX = 4.0
WORST_MORE = 10.0
ENDS_S = 3_600.0
"""These runs end within 400 s of their time."""
TURNS_IN_TIME_MIN = 0.2
"""The worst tenant has 44 and 33 % in time."""
STRICT = (
    "two_models", "rare_short", "rare_long", "four_workers", "unlike_flood", "seven_models", "short_due",
)  # fmt: skip


def runs(**in_time: tuple[float, float]) -> list[Played]:
    """Return a run of each planner. The arguments are the parts in time of two tenants."""
    return [Played(name, dict(zip("ab", in_time.get(name, (0.0, 0.0)), strict=True)), 1.0, 0) for name in PLANNERS]


def rounded(played: list[Played], entitled: set[str]) -> list[tuple[str, str, int]]:
    return [(name, what, round(points)) for name, what, points in dominations(played, entitled)]


def test_a_planner_dominates_that_is_better_for_one_and_worse_for_none() -> None:
    entitled = {"a", "b"}
    better_for_one = runs(plan=(0.5, 0.5), qlm=(0.5, 0.5 + MARGIN))
    assert rounded(better_for_one, entitled) == [("qlm", "tenant", 2)]
    assert distance(better_for_one, entitled) == pytest.approx(2.0)
    assert dominations(runs(plan=(0.5, 0.5), qlm=(0.49, 0.9)), entitled) == []
    assert rounded(runs(plan=(0.5, 0.9), qlm=(0.6, 0.8)), entitled) == [("qlm", "worst", 10)]
    assert dominations(runs(plan=(0.5, 0.9), qlm=(0.6, 0.8)), {"b"}) == []
    assert dominations(better_for_one, set()) == []


def test_a_scene_is_the_same_again_from_its_file_and_its_neighbour_is_another() -> None:
    random = Random(0)
    for seed in range(50):
        shape = random_scene(seed)
        again = SceneShape.from_json(json.loads(json.dumps(shape.as_json())))
        assert again == shape
        assert list(again.scene().workload) == list(shape.scene().workload)
        assert any(vary(shape, random) != shape for _ in range(20))


@pytest.mark.parametrize("name", STRICT)
def test_no_simpler_planner_dominates_in_the_scenes_of_outsiders(name: str) -> None:
    scene = next(each for each in named_scenes() if each.name == name)
    assert dominations([play(scene, planner) for planner in PLANNERS], entitled_tenants(scene)) == []


def test_a_tenant_keeps_its_worker_from_two_rare_models_with_long_swaps() -> None:
    """It has 100 %; once it had 33, because the worker of the last rare model rested when the other one was due. The
    bound was chosen after a look."""
    if not CASES.is_dir():
        pytest.skip(f"there are no cases in {CASES}")
    requests, spec = open_workload([str(CASES / "t7_two_models.csv")]), read_fleet(CASES / "t7_two_models.fleet.yaml")
    able = {name: replace(each, swap_s=50.0) for name, each in spec.workers[0].models.items()}
    spec = replace(spec, workers=[replace(worker, models=able) for worker in spec.workers])
    run = play(Scene("t7", spec, ListWorkload("t7", list(requests))), "plan")
    assert run.in_time["victim"] >= 0.95


@pytest.mark.parametrize("name", ["t7_two_models", "rare_short"])
def test_no_simpler_planner_dominates_by_more_than_three_points_in_the_files_of_the_issue(name: str) -> None:
    """In the first, qlm dominates by 2.1 points: two of the adversary's 94 requests are late. The bound was chosen
    after a look."""
    if not CASES.is_dir():
        pytest.skip(f"there are no cases in {CASES}")
    requests = list(open_workload([str(CASES / f"{name}.csv")]))
    given = Scene(name, read_fleet(CASES / f"{name}.fleet.yaml"), ListWorkload(name, requests))
    runs = [play(given, planner) for planner in ("static", "qlm", WITHOUT_PLAN, "plan")]
    assert entitled_tenants(given) == set(runs[0].in_time)
    assert max((points for _, _, points in dominations(runs, entitled_tenants(given))), default=0.0) <= 3.0
    for own in runs[2:]:
        assert min(own.in_time.values()) >= 0.97


@pytest.mark.parametrize("name", ["seven_models", "long_swap"])
def test_a_gate_without_a_plan_ends_and_every_tenant_has_its_turns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once these runs did not end: a simulated gate decides nothing by itself, and no heartbeat let it."""
    actions = GateAlone.actions

    def act(self: GateAlone, now_s: float) -> Iterator[Action]:
        assert now_s < ENDS_S, "requests wait, and no model is loaded for them"
        return actions(self, now_s)

    monkeypatch.setattr(GateAlone, "actions", act)
    scene = next(each for each in named_scenes() if each.name == name)
    run = simulate(RunSpec(scene.workload, "fcfs", scene.fleet, planner=WITHOUT_PLAN))
    assert run.all.served == run.all.requests
    assert min(tenant.in_time for tenant in run.tenants.values()) >= TURNS_IN_TIME_MIN
    assert run.swapping_s <= run.total_time_s * len(scene.fleet.workers) / 2


WITHOUT_A_PLAN = ("two_models", "long_swap", "seven_models", "fifty_small", "overload", "swap_40")


def test_without_a_plan_few_scenes_of_outsiders_are_dominated() -> None:
    planners = ("static", "qlm", WITHOUT_PLAN)
    scenes = [each for each in named_scenes() if each.name in WITHOUT_A_PLAN]
    for scene in scenes:
        assert dominations(play_all(scene, planners), entitled_tenants(scene), WITHOUT_PLAN) == [], scene.name


def test_where_the_plan_serves_all_in_time_no_other_planner_is_played() -> None:
    """The verdict is the same: none can be better."""
    scene = next(each for each in named_scenes() if each.name == "rare_long")
    assert [run.planner for run in play_all(scene, PLANNERS, only_failures=True)] == ["plan"]


@pytest.mark.parametrize("seed", [67, 71, 82, 96, 113, 1000])
def test_a_rival_is_played_as_long_as_it_may_dominate_and_the_verdict_is_the_same(seed: int) -> None:
    scene = random_scene(seed).scene()
    entitled = entitled_tenants(scene)
    whole, needed = play_all(scene, PLANNERS), play_all(scene, PLANNERS, only_failures=True)
    found = dominations(whole, entitled)
    assert dominations(needed, entitled) == found
    assert len(needed) < len(whole) or len({name for name, _, _ in found}) == 3


def test_each_planner_without_foresight_is_dominated_in_one_of_two_scenes_that_begin_alike() -> None:
    calm, rush = twin_scenes()
    assert [each for each in rush.workload if each.arrival_s < LAST_SWAP_S] == list(calm.workload)
    dominated = {run.planner for scene in (calm, rush) for run, found in judge_all(scene) if found}
    assert dominated == {"qlm", "edf", "plan", WITHOUT_PLAN}


def test_few_random_scenes_are_dominated() -> None:
    judged = [judge(random_scene(seed)) for seed in SEEDS]
    dominated = [each for each in judged if dominations(each.runs, each.entitled)]
    points = [max(0.0, each.distance) for each in dominated]
    assert len(dominated) <= DOMINATED_MAX * len(judged)
    assert sum(points) <= MEAN_MAX * len(judged)


def test_the_worst_scenes_of_the_search_are_no_worse() -> None:
    recorded = [each["points"] for each in json.loads(WORST.read_text())]
    now = [judge(shape).distance for shape in read_shapes()]
    assert sum(now) / len(now) <= sum(recorded) / len(recorded) + WORST_MORE
