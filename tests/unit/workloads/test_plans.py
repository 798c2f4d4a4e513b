"""Planned workloads: rates and lengths as planned, the same for a seed, and independent between tenants."""

from __future__ import annotations

import math
import pickle
import tracemalloc
from collections import Counter
from dataclasses import replace
from itertools import pairwise, takewhile
from random import Random
from statistics import fmean, median, pstdev, stdev

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.workloads.arrivals import Arrival, WorkloadError
from headgate.workloads.described import CallsShare, InteractionArrivals, PlannedWorkload, TenantPlan
from headgate.workloads.distributions import (
    Burst,
    Empirical,
    Even,
    Fixed,
    Gamma,
    Length,
    Lognormal,
    OnOff,
    Ramp,
    Rate,
    SampledLengths,
    Spacing,
    Steady,
    TimedArrivals,
    Uniform,
)

SIGMAS = 4.5
"""Of seven in a million draws; the seeds are fixed, so what passes once passes always."""
SMALL = SampledLengths(Fixed(8), Fixed(4))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rate", [Steady(2.0), OnOff(4.0, 25.0, 25.0), Ramp(0.0, 4.0, 5000.0), Ramp(3.0, 1.0, 5000.0)])
@pytest.mark.parametrize(("spacing", "cv"), [(Even(0.5), 0.0), (Gamma(), 1.0), (Gamma(0.5), 0.5), (Gamma(2.0), 2.0)])
def test_as_many_arrivals_as_the_rate_says(rate: Rate, spacing: Spacing, cv: float, seed: int) -> None:
    process = TimedArrivals(spacing, rate, start_s=100.0, end_s=5100.0)
    times = list(process.times(Random(seed)))
    assert all(100.0 <= time < 5100.0 for time in times)
    # A renewal process of n points expected has about cv^2 n variance (Cox, Renewal Theory, 1962, section 4.5).
    assert process.expected == pytest.approx(10_000)
    assert abs(len(times) - 10_000) <= SIGMAS * cv * 100.0 + 1
    # And they lie where the rate says: as many before any time as accumulate until then.
    for until_s in (500.0, 1015.0, 2500.0, 4000.0):
        before = sum(1 for _ in takewhile(lambda time, until_s=until_s: time < 100.0 + until_s, times))  # type: ignore[misc]
        expected = rate.accumulated(until_s)
        assert abs(before - expected) <= SIGMAS * cv * math.sqrt(expected) + 1


@pytest.mark.parametrize("cv", [0.3, 1.0, 3.0])
def test_gaps_vary_by_the_cv_given(cv: float) -> None:
    times = list(TimedArrivals(Gamma(cv), Steady(10.0), 0.0, 5000.0).times(Random(1)))
    gaps = [after - before for before, after in pairwise(times)]
    assert fmean(gaps) == pytest.approx(0.1, rel=SIGMAS * cv / math.sqrt(len(gaps)))
    assert stdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.1)


@given(st.floats(0.0, 10.0), st.floats(0.0, 10.0), st.floats(1.0, 1e6), st.floats(0.0, 0.999), st.floats(0.1, 1e3))
@example(0.0, 0.0, 101.0, 5e-324, 1.0)
@example(5e-324, 0.0, 101.0, 5e-324, 1.0)
def test_a_rate_and_its_inverse(first: float, last: float, over_s: float, part: float, on_s: float) -> None:
    rates: list[Rate] = [Steady(first + 0.1), OnOff(first + 0.1, on_s, over_s), Ramp(first, last + 0.01, over_s)]
    for rate in rates:
        all_of_it = rate.accumulated(over_s)
        at_s = rate.reached_s(part * all_of_it)
        assert 0.0 <= at_s <= over_s * (1 + 1e-6)
        assert rate.accumulated(at_s) == pytest.approx(part * all_of_it, rel=1e-6, abs=1e-6)


def test_bursts_are_as_likely_and_as_large_as_given() -> None:
    burst = Burst(0.25, 10, 30)
    process = TimedArrivals(Gamma(), Steady(1.0), 0.0, 20_000.0, burst)
    sizes = Counter(Counter(process.times(Random(3))).values())
    arrivals = sum(sizes.values())
    bursts = arrivals - sizes[1]
    assert set(sizes) == {1, *range(10, 31)}
    assert abs(bursts - 0.25 * arrivals) <= SIGMAS * math.sqrt(0.25 * 0.75 * arrivals)
    assert fmean(sizes.elements()) == pytest.approx(burst.mean, rel=0.05)
    assert process.expected == pytest.approx(20_000 * burst.mean)


@pytest.mark.parametrize(
    ("length", "mean", "sd"),
    [
        (Fixed(7), 7.0, 0.0),
        (Uniform(5, 14), 9.5, math.sqrt(99 / 12)),
        # mean = median e^(s^2/2), sd = mean sqrt(e^(s^2) - 1)
        (Lognormal(1000.0, 0.5), 1000 * math.exp(0.125), 1000 * math.exp(0.125) * math.sqrt(math.exp(0.25) - 1)),
        (Empirical("f", (1, 2, 3, 4, 10)), 4.0, pstdev([1, 2, 3, 4, 10])),
    ],
)
def test_lengths_have_the_mean_and_spread_they_should(length: Length, mean: float, sd: float) -> None:
    random = Random(5)
    drawn = [length.draw(random) for _ in range(20_000)]
    assert abs(fmean(drawn) - mean) <= SIGMAS * sd / math.sqrt(20_000) + 0.05 * bool(sd)
    assert pstdev(drawn) == pytest.approx(sd, rel=0.05)


def test_lognormal_is_about_its_median_and_within_its_bounds() -> None:
    random = Random(5)
    drawn = [Lognormal(100.0, 1.0, low=20, high=400).draw(random) for _ in range(20_000)]
    # The median of n draws has standard deviation 1 / (2 f sqrt(n)), f = 1 / (100 sqrt(2 pi)) the density there.
    assert abs(median(drawn) - 100.0) <= SIGMAS * 50.0 * math.sqrt(2 * math.pi) / math.sqrt(20_000) + 0.5
    assert (min(drawn), max(drawn)) == (20, 400)
    assert 1 <= Lognormal(1e7, 10.0).draw(random) <= 10_000_000


def test_interactions_have_as_many_calls_as_their_shares_say() -> None:
    interactions = InteractionArrivals((CallsShare(1, 1, 73.2), CallsShare(2, 10, 26.1), CallsShare(11, 20, 0.7)))
    random = Random(9)
    calls = [interactions.calls(random) for _ in range(20_000)]
    for low, high, share in ((1, 1, 0.732), (2, 10, 0.261), (11, 20, 0.007)):
        found = sum(low <= one <= high for one in calls)
        assert abs(found - 20_000 * share) <= SIGMAS * math.sqrt(20_000 * share * (1 - share))
    assert set(calls) == set(range(1, 21))
    assert fmean(calls) == pytest.approx(interactions.mean, rel=0.05)


SPACINGS = st.builds(Even, st.floats(0.0, 0.99)) | st.builds(Gamma, st.sampled_from([0.2, 1.0, 1.7]))
RATES = (
    st.builds(Steady, st.floats(0.1, 3.0))
    | st.builds(OnOff, st.floats(0.1, 3.0), st.floats(1.0, 20.0), st.floats(1.0, 20.0))
    | st.builds(Ramp, st.floats(0.0, 3.0), st.floats(0.1, 3.0), st.just(30.0))
)
PROCESSES = st.builds(
    TimedArrivals,
    SPACINGS,
    RATES,
    st.floats(0.0, 9.0),
    st.floats(10.0, 30.0),
    st.none() | st.builds(Burst, st.floats(0.0, 1.0), st.just(2), st.just(4)),
)
LENGTHS = (
    st.builds(Fixed, st.integers(1, 50))
    | st.just(Uniform(3, 9))
    | st.just(Lognormal(20.0, 1.5))
    | st.sampled_from([Empirical("a", (3, 1, 2)), Empirical("b", (0, 7))])
)
INTERACTIONS = st.none() | st.builds(
    InteractionArrivals,
    st.lists(
        st.builds(CallsShare, st.integers(1, 2), st.integers(2, 5), st.floats(0.1, 9.0)), min_size=1, max_size=3
    ).map(tuple),
    st.sampled_from([0.0, 0.5, 7.0]),
)


def plans(names: str) -> st.SearchStrategy[list[TenantPlan]]:
    return st.tuples(
        *(
            st.builds(
                TenantPlan,
                st.just(name),
                st.lists(PROCESSES, min_size=1, max_size=3).map(tuple),
                st.builds(SampledLengths, LENGTHS, LENGTHS),
                system_tokens=st.integers(0, 20),
                requests_max=st.none() | st.integers(1, 20),
                interactions=INTERACTIONS,
            )
            for name in names
        )
    ).map(list)


def made(plans: list[TenantPlan], seed: int) -> PlannedWorkload | None:
    try:
        return PlannedWorkload("w", tuple(plans), 30.0, seed)
    except WorkloadError:
        return None


@settings(deadline=None)
@given(plans("abc"), st.integers(0, 2**63 - 1), st.permutations("abc"))
def test_a_workload_is_in_order_the_same_each_time_and_no_tenant_depends_on_another(
    plans: list[TenantPlan], seed: int, order: str
) -> None:
    workload = made(plans, seed)
    if workload is None:
        return
    arrivals = list(workload)
    assert list(pickle.loads(pickle.dumps(workload))) == list(workload) == arrivals  # noqa: S301
    assert all(one.arrival_s <= other.arrival_s for one, other in pairwise(arrivals))
    assert (workload.requests, workload.last_arrival_s) == (len(arrivals), arrivals[-1].arrival_s)
    for number, plan in enumerate(plans):
        own = [arrival for arrival in arrivals if arrival.tenant == plan.name]
        alone = made([plan], seed)
        assert own == ([] if alone is None else list(alone))
        check_tenant(plan, own)
        others = made(plans[:number] + plans[number + 1 :], seed)
        rest = [arrival for arrival in arrivals if arrival.tenant != plan.name]
        assert rest == ([] if others is None else list(others))
    shuffled = made(sorted(plans, key=lambda plan: order.index(plan.name)), seed)
    assert shuffled is not None
    assert Counter(shuffled) == Counter(arrivals)


def check_tenant(plan: TenantPlan, own: list[Arrival]) -> None:
    assert all(one.input_tokens >= 1 and one.output_tokens >= 1 for one in own)
    assert all(one.system_tokens == min(plan.system_tokens, one.input_tokens) for one in own)
    if plan.interactions is None:
        assert {one.interaction for one in own} <= {None}
        assert plan.requests_max is None or len(own) <= plan.requests_max
        assert all(one.arrival_s < 30.0 for one in own)
        return
    stages: dict[str | None, list[Arrival]] = {}
    for one in own:
        stages.setdefault(one.interaction, []).append(one)
    assert [calls[0].interaction for calls in stages.values()] == [f"i{number}" for number in range(len(stages))]
    for calls in stages.values():
        first_s = calls[0].arrival_s
        assert [one.stage for one in calls] == list(range(len(calls)))
        assert [one.arrival_s for one in calls] == [first_s + n * plan.interactions.think_s for n in range(len(calls))]
    if plan.requests_max is not None and stages:
        longest = max(len(calls) for calls in stages.values())
        assert len(own) < plan.requests_max + longest


def tenant(name: str, rate_per_s: float, **more: object) -> TenantPlan:
    return TenantPlan(name, (TimedArrivals(Gamma(), Steady(rate_per_s), 0.0, 1000.0),), SMALL, **more)  # type: ignore[arg-type]


def test_what_a_seed_gives_never_changes() -> None:
    """In no process and on no day; a figure of docs/evidence.md would change with it."""
    workload = PlannedWorkload("w", (tenant("a", 0.01), tenant("b", 0.01)), 1000.0, 1)
    first = [(one.tenant, round(one.arrival_s, 6)) for one in workload][:4]
    assert first == [("a", 37.870254), ("b", 42.695664), ("b", 43.537454), ("a", 76.191361)]


def test_another_seed_gives_another_workload() -> None:
    workload = PlannedWorkload("w", (tenant("a", 1.0),), 1000.0)
    other = replace(workload, seed=1)
    assert (other.seed, other.name, other.tenants) == (1, "w", ("a",))
    assert list(other) != list(workload)
    assert list(replace(other, seed=0)) == list(workload)
    assert other.requests == len(list(other))


def test_tenants_with_the_same_plan_do_not_move_in_step() -> None:
    workload = PlannedWorkload("w", (tenant("a", 1.0), tenant("b", 1.0)), 1000.0)
    times = {name: {one.arrival_s for one in workload if one.tenant == name} for name in "ab"}
    assert not times["a"] & times["b"]


def test_weights_and_tiers() -> None:
    workload = PlannedWorkload("w", (tenant("a", 1.0, weight=2.0, tier="premium"), tenant("b", 1.0)), 1000.0)
    assert (workload.weights, workload.tiers) == ({"a": 2.0, "b": 1.0}, {"a": "premium"})


def test_nothing_and_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WorkloadError, match="makes no request"):
        PlannedWorkload("w", (tenant("a", 1e-9),), 1000.0)
    monkeypatch.setattr("headgate.workloads.described.REQUESTS_MAX", 500)
    with pytest.raises(WorkloadError, match="more than 500 requests"):
        PlannedWorkload("w", (tenant("a", 1.0),), 1000.0)


def test_a_long_workload_is_never_held() -> None:
    workload = PlannedWorkload("w", (tenant("a", 15.0), tenant("b", 15.0)), 1000.0)
    tracemalloc.start()
    try:
        requests = sum(1 for _ in workload)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert requests == workload.requests > 25_000
    assert peak_bytes < 100_000  # a list of them would take 5 MB
