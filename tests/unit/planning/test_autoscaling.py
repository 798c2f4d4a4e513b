"""The number of workers that entitled work needs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.policies.planning.autoscaling import WorkersNeeded, _smallest, workers_needed
from dispatcher.policies.planning.claims import TenantBacklog
from dispatcher.policies.planning.fleet import FleetWorker
from dispatcher.policies.planning.plan import make_plan
from tests.support.planning.fleets import NOW, backlog, group, worker

FURTHER = [worker(loaded="")]


def needed(work: list[TenantBacklog], workers: list[FleetWorker], most: int = 32) -> WorkersNeeded:
    return workers_needed(work, workers, FURTHER, NOW, workers_max=most, moves=2_000)


def test_as_many_workers_as_the_work_takes_until_it_is_due() -> None:
    fleet = [worker(f"w{at}") for at in range(3)]
    for seconds, count in ((15.0, 1), (45.0, 3), (150.0, 10)):
        work = [backlog(group("a", due_s=20.0, seconds=seconds, requests=int(10 * seconds)))]
        assert abs((needed(work, fleet).workers or 0) - count) <= 1


def test_one_worker_less_is_too_few() -> None:
    work = [backlog(*(group(model, due_s=25.0, seconds=40.0, requests=80) for model in "abc"))]
    found = needed(work, [worker()])
    assert found.workers is not None
    assert found.reason == ""
    fleet = [worker(), *(replace(FURTHER[0], name=f"x{at}") for at in range(found.workers))]
    assert make_plan(work, fleet[: found.workers], NOW, moves=2_000).entitled_late_s == 0.0
    assert make_plan(work, fleet[: found.workers - 1], NOW, moves=2_000).entitled_late_s > 0.0


def test_a_forecast_asks_for_workers_too() -> None:
    assert needed([backlog(a=270.0)], [worker()]).workers in (5, 6)


def test_deferred_work_with_slack_asks_for_one() -> None:
    batch = backlog(group("a", due_s=3600.0, seconds=1000.0, requests=1000, slo_class="batch"))
    assert needed([batch], [worker()]).workers == 1
    urgent = replace(batch, groups=[replace(batch.groups[0], due_at=NOW + 200.0, last_due_at=NOW + 200.0)])
    assert (needed([urgent], [worker()]).workers or 0) > 2, "the later part has slack still"


def test_overdue_work_counts_as_new() -> None:
    overdue = backlog(group("a", due_s=-50.0, seconds=150.0, requests=150))
    found = needed([overdue], [worker()])
    assert found.workers is not None
    assert 2 <= found.workers <= 5
    assert found.unsaved == 150


def test_nothing_needs_nobody() -> None:
    assert needed([], [worker()]) == WorkersNeeded(0)
    assert needed([backlog()], []) == WorkersNeeded(0)


def test_why_no_number_suffices() -> None:
    assert "no worker fits huge" in needed([backlog(group("huge"))], [worker()]).reason
    assert "no worker fits a" in needed([backlog(group("a"))], [], most=0).reason
    unmeasured = worker(per_s=0.0)
    found = workers_needed([backlog(group())], [unmeasured], [], NOW, workers_max=9)
    assert (found.workers, found.reason) == (None, "no worker's throughput is measured yet")
    much = backlog(group("a", due_s=20.0, seconds=2000.0, requests=2000, slo_class="interactive"))
    found = needed([much], [worker()], most=4)
    assert found.workers is None
    assert found.reason.startswith("with 4 workers, entitled work is")
    alone = workers_needed([much], [worker()], [], NOW, workers_max=9, moves=500)
    assert alone.reason.startswith("with 1 workers")


def test_a_flood_asks_for_more_than_the_largest_fleet() -> None:
    flood = backlog(group("a", due_s=60.0, seconds=9000.0, requests=9000), tenant="flood")
    quiet = backlog(group("a", due_s=20.0, seconds=5.0), tenant="quiet")
    assert needed([flood, quiet], [worker()], most=6).workers is None
    assert needed([quiet], [worker()], most=6).workers == 1


@settings(deadline=None)
@given(most=st.integers(1, 200), smallest=st.integers(1, 200))
def test_the_search_finds_the_smallest(most: int, smallest: int) -> None:
    tried: list[int] = []

    def suffices(count: int) -> bool:
        tried.append(count)
        return count >= smallest

    assert _smallest(most, suffices) == min(most, smallest)
    assert len(tried) <= 2 * most.bit_length()


def test_kinds_are_added_in_turn() -> None:
    kinds = [worker("x", "", models="a"), worker("x", "", models="b")]
    work = [backlog(*(group(model, due_s=30.0, seconds=20.0) for model in "ab"))]
    assert workers_needed(work, [], kinds, NOW, workers_max=8, moves=500).workers == 2


@pytest.mark.parametrize("name", ["+0", "++0", "w"])
def test_a_worker_may_have_any_name(name: str) -> None:
    work = [backlog(group("a", due_s=20.0, seconds=60.0, requests=60))]
    assert needed(work, [worker(name)]).workers is not None
