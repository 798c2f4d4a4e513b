"""The planner: against the exact optimum, and what holds for every plan."""

from __future__ import annotations

from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.policies.planning.problem import (
    PlanCost,
    PlannedWorker,
    Problem,
    Queue,
    WaitingGroup,
    ends_s,
    late_requests,
    plan_cost,
    queue_cost,
)
from dispatcher.policies.planning.search import anneal, insert_by_due_time
from headgate.evidence.qlm.exact import cheapest_cost
from headgate.evidence.qlm.problems import KIND, mixed, small
from tests.support.planning.baselines import list_edf
from tests.support.planning.problems import feasible

MOVES = 12_000


def group(name: str, model: str = "m", due_s: float = 10.0, seconds: float = 5.0, **given: object) -> WaitingGroup:
    fields = {"requests": 1, "is_entitled": True, **given}
    return WaitingGroup(name, model, due_s=due_s, seconds={KIND: seconds}, **fields)  # type: ignore[arg-type]


def worker(name: str = "w", loaded: str = "m", **swap_s: float) -> PlannedWorker:
    return PlannedWorker(name, KIND, loaded, {"m": 2.0, "n": 3.0, **swap_s})


def cost_of(problem: Problem, queues: list[Queue]) -> float:
    return sum(queue_cost(problem, at, queue) for at, queue in enumerate(queues))


def planned(problem: Problem, moves: int = MOVES) -> list[Queue]:
    return anneal(problem, insert_by_due_time(problem), moves)


@pytest.mark.parametrize("seed", range(12))
def test_it_is_close_to_the_exact_optimum(seed: int) -> None:
    problem = small(seed)
    exact = cheapest_cost(problem)
    found = planned(problem)
    if exact < 1.0:
        assert plan_cost(problem, found).entitled_s == pytest.approx(0.0), "a plan without lateness exists"
    else:
        assert cost_of(problem, found) <= 1.1 * exact


def test_the_exact_optimum_is_that_of_all_plans() -> None:
    groups = [group("a", "m", 4), group("b", "n", 9), group("c", "m", 20, requests=3), group("d", "n", 7, 2.0)]
    problem = Problem(groups, [worker("v"), worker("w", "n")])
    plans = (
        [[at for at in order if place[at] == 0], [at for at in order if place[at] == 1]]
        for place in product((0, 1), repeat=4)
        for order in permutations(range(4))
    )
    assert cheapest_cost(problem) == pytest.approx(min(cost_of(problem, plan) for plan in plans))


def test_of_a_thousand_groups_hardly_any_is_late_after_insertion_alone() -> None:
    problem = feasible(1)
    queues = insert_by_due_time(problem)
    requests = sum(each.requests for each in problem.groups)
    assert late_requests(problem, queues) <= 0.015 * requests
    assert sorted(at for queue in queues for at in queue) == list(range(1000))


def test_fast_and_slow_workers_and_little_reserve() -> None:
    problem = mixed(2)
    requests = sum(each.requests for each in problem.groups)
    inserted = insert_by_due_time(problem)
    late = [late_requests(problem, plan) for plan in (list_edf(problem), inserted, anneal(problem, inserted, 60_000))]
    assert late[0] > 0.02 * requests, "the problem is hard"
    assert late[1] <= 0.015 * requests
    assert late[2] <= 0.01 * requests


def test_a_swap_takes_its_time_and_groups_of_one_model_stand_together() -> None:
    problem = Problem([group("a", "n", 100), group("b", "m", 100), group("c", "n", 100)], [worker()])
    queues = insert_by_due_time(problem)
    assert [[problem.groups[at].model for at in queue] for queue in queues] == [["m", "n", "n"]]
    assert ends_s(problem, 0, queues[0]) == [5.0, 13.0, 18.0]
    assert plan_cost(problem, queues) == PlanCost(0.0, 0.0, 3.0)


def test_entitled_work_goes_before_any_amount_of_surplus() -> None:
    groups = [group("flood", due_s=5, requests=1000, is_entitled=False), group("quiet", due_s=5)]
    queues = planned(Problem(groups, [worker()]))
    assert queues == [[1, 0]]


def test_late_work_is_counted_by_request() -> None:
    problem = Problem([group("a", due_s=4.0, seconds=8.0, requests=4)], [worker()])
    assert plan_cost(problem, [[0]]) == PlanCost(4 * 4.0, 0.0, 0.0)
    assert late_requests(problem, [[0]]) == 2.0


def test_it_is_the_same_for_the_same_seed_and_changes_no_input() -> None:
    problem = small(3)
    start = insert_by_due_time(problem)
    before = [list(queue) for queue in start]
    assert anneal(problem, start, 2000, seed=5) == anneal(problem, start, 2000, seed=5)
    assert start == before


def test_a_model_that_fits_no_worker_is_named_and_left_out() -> None:
    problem = Problem([group("a"), group("huge", "huge")], [worker()])
    assert problem.unservable == [1]
    assert planned(problem) == [[0]]
    slow = WaitingGroup("b", "m", 1, 5.0, {"other": 3.0})
    assert Problem([slow], [worker()]).unservable == [0]


def test_swaps_that_take_no_time_and_models_by_the_thousand() -> None:
    many = [group(f"g{at}", f"m{at}", due_s=float(at)) for at in range(300)]
    workers = [PlannedWorker(f"w{at}", KIND, "", {each.model: 0.0 for each in many}) for at in range(3)]
    problem = Problem(many, workers)
    queues = planned(problem, 2000)
    assert sorted(at for queue in queues for at in queue) == list(range(300))
    assert plan_cost(problem, queues).swap_s == 0.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: group("a", due_s=float("inf")), "finite time"),
        (lambda: group("a", seconds=-1.0), "negative"),
        (lambda: group("a", requests=0), "at least one"),
        (lambda: worker(m=float("inf")), "not finite"),
        (lambda: PlannedWorker("w", KIND, "m", {}, float("nan")), "not finite"),
    ],
)
def test_impossible_numbers_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    models = ["a", "b", "c"]
    times = st.floats(0.0, 100.0)
    groups = draw(
        st.lists(
            st.builds(
                WaitingGroup,
                st.just("g"),
                st.sampled_from(models),
                st.integers(1, 50),
                st.floats(-50.0, 200.0),
                st.dictionaries(st.sampled_from(["fast", "slow"]), times, max_size=2),
                st.booleans(),
            ),
            max_size=9,
        )
    )
    workers = draw(
        st.lists(
            st.builds(
                PlannedWorker,
                st.just("w"),
                st.sampled_from(["fast", "slow"]),
                st.sampled_from(["", "a", "z"]),
                st.dictionaries(st.sampled_from(models), times, max_size=3),
                times,
            ),
            max_size=3,
        )
    )
    return Problem(groups, workers)


@settings(max_examples=150, deadline=None)
@given(problems(), st.integers(0, 400))
def test_a_plan_has_every_group_once_and_is_never_worse_than_its_start(problem: Problem, moves: int) -> None:
    start = insert_by_due_time(problem)
    found = anneal(problem, start, moves)
    assert sorted(at for queue in found for at in queue) == problem.servable
    assert cost_of(problem, found) <= cost_of(problem, start) * (1 + 1e-9) + 1e-9
    assert cost_of(problem, found) < float("inf")
