"""Whole plans: every request once, no swap that the rules forbid, and deferred work displaces nothing."""

from __future__ import annotations

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dispatcher.policies.clocks import Share
from dispatcher.policies.planning.claims import TenantBacklog
from dispatcher.policies.planning.fleet import FleetWorker, held_s
from dispatcher.policies.planning.plan import make_plan
from tests.support.duration import at_depth
from tests.support.planning.fleets import NOW, PER_S, backlog, group

MODELS = "abcd"
groups = st.builds(
    group,
    st.sampled_from(MODELS),
    st.sampled_from([-NOW, -30.0, 1.0, 15.0, 60.0]),
    st.sampled_from([0.0, 0.5, 8.0, 200.0]),
    st.integers(1, 90),
    st.sampled_from(["interactive", "normal"]),
)
shares = st.builds(Share, st.sampled_from([0.1, 1.0, 5.0]), st.sampled_from([0.0, PER_S]))
forecasts = st.dictionaries(st.sampled_from(MODELS), st.sampled_from([0.0, 20.0, 90.0]), max_size=2)
swaps = st.sampled_from([0.0, 1.0, 8.0, float("inf")])


@st.composite
def backlogs(draw: st.DrawFn) -> list[TenantBacklog]:
    return [
        backlog(*draw(st.lists(groups, max_size=4)), tenant=f"t{number}", share=draw(shares), **draw(forecasts))
        for number in range(draw(st.integers(1, 3)))
    ]


@st.composite
def fleets(draw: st.DrawFn) -> list[FleetWorker]:
    found = []
    for number in range(draw(st.integers(1, 4))):
        loaded = draw(st.sampled_from(["", *MODELS]))
        rates = draw(st.dictionaries(st.sampled_from(MODELS), st.sampled_from([0.0, 0.4 * PER_S, PER_S]), max_size=4))
        swap_s = draw(st.dictionaries(st.sampled_from(MODELS), swaps, max_size=4))
        since, free_s = NOW - draw(st.sampled_from([-5.0, 0.0, 12.0, 500.0])), draw(st.sampled_from([0.0, 0.0, 7.0]))
        kind = draw(st.sampled_from(["fast", "slow"]))
        found.append(FleetWorker(f"w{number}", kind, loaded, since, swap_s, free_s, rates, draw(st.integers(1, 16))))
    return found


@settings(max_examples=200, deadline=None)
@given(work=backlogs(), workers=fleets())
def test_every_request_has_one_place_and_no_swap_breaks_a_rule(
    work: list[TenantBacklog], workers: list[FleetWorker]
) -> None:
    plan = make_plan(work, workers, NOW, moves=200)
    placed = sum(each.requests for order in plan.groups.values() for each in order)
    assert placed + plan.left_out == sum(each.requests for tenant in work for each in tenant.groups)
    waited_for = {each.key.model for tenant in work for each in tenant.groups}
    for worker in workers:
        model = plan.models[worker.name]
        assert model == worker.loaded or worker.fits(model)
        assert held_s(worker, model, NOW, False) == 0.0
        if worker.loaded in waited_for and any(plan.groups.values()):
            served = any(each.fits(worker.loaded) for each in workers)
            assert not served or held_s(worker, model, NOW, True) == 0.0
        assert all(worker.fits(each.key.model) for each in plan.groups[worker.name])


@settings(max_examples=100, deadline=None)
@given(work=backlogs(), workers=fleets(), model=st.sampled_from(MODELS))
def test_a_plan_that_starts_from_the_last_one_is_as_sound(
    work: list[TenantBacklog], workers: list[FleetWorker], model: str
) -> None:
    last = make_plan(work, workers, NOW - 2.0, moves=50)
    more = [*work, backlog(group(model, 5.0), tenant="new")]
    plan = make_plan(more, workers[1:], NOW, last=last, moves=50)
    placed = sum(each.requests for order in plan.groups.values() for each in order)
    assert placed + plan.left_out == sum(each.requests for tenant in more for each in tenant.groups)


def _others(worker: FleetWorker) -> set[float]:
    """Return the seconds of the worker's swaps to other models."""
    return {seconds for model, seconds in worker.swap_s.items() if model != worker.loaded}


@settings(max_examples=at_depth(50, 150), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(work=backlogs(), workers=fleets(), model=st.sampled_from(MODELS))
def test_deferred_work_with_slack_changes_no_worker_that_has_work(
    work: list[TenantBacklog], workers: list[FleetWorker], model: str
) -> None:
    """Work and swaps that take no time are left out: two plans that differ in them cost the same. So are workers
    without a model, which take any."""
    assume(all(worker.loaded and 0.0 not in _others(worker) for worker in workers))
    assume(all(each.expected_service for tenant in work for each in tenant.groups))
    batch = backlog(group(model, 3600.0, 1.0, slo_class="batch"), tenant="batch")
    idle = backlog(tenant="batch")
    without = make_plan([*work, idle], workers, NOW, moves=200)
    plan = make_plan([*work, batch], workers, NOW, moves=200)
    for worker in workers:
        if plan.models[worker.name] != without.models[worker.name] and plan.models[worker.name] == model:
            assert not without.groups[worker.name]
            assert worker.free_s == 0.0
