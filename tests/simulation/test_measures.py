"""The VTC paper's quantities, by hand on small cases and to the digit on the authors' own logs; and a run by bins,
between which nothing is lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.policies.service import WEIGHTED_TOKENS
from headgate.evidence.runs import avg_difference, max_difference
from headgate.evidence.vtc.play import TABLE_2, TABLE_5, TABLE_6, Printed, measured_run
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.measures.announced_waits import WaitCoverage
from headgate.simulator.measures.collector import Collector, Percentiles, percentiles
from headgate.simulator.measures.service_difference import POINTS, MeasuredRates
from headgate.simulator.measures.timeline import BINS_MAX, Timeline, TimelineCollector, furthest_behind
from headgate.simulator.requests import SimRequest
from headgate.simulator.run import RunSpec
from headgate.simulator.simulate import simulate
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload
from tests.support.simulator.fleets import TRACES, needs_traces


@needs_traces
@pytest.mark.parametrize(("workload", "table"), [("real", TABLE_2), ("overload", TABLE_5), ("overload-multi", TABLE_6)])
def test_the_papers_tables_come_out_of_its_logs_to_the_digit(workload: str, table: dict[str, Printed]) -> None:
    compared = 0
    for policy, row in table.items():
        measured = measured_run(TRACES, workload, policy)
        if measured is not None:
            compared += 1
            assert max_difference(measured) == pytest.approx(row.max, abs=0.006)
            assert avg_difference(measured) == pytest.approx(row.avg, abs=0.006)
            assert measured.difference is not None
            assert measured.difference.var == pytest.approx(row.var, rel=1e-5, abs=0.011)
            assert measured.throughput_tokens_per_s == pytest.approx(row.throughput, abs=0.51)
    assert compared >= 3


def test_percentiles_of_a_run() -> None:
    assert percentiles([]) is None
    assert percentiles([float(n) for n in range(100, 0, -1)]) == Percentiles(50.0, 99.0)


def test_a_tenant_that_gets_nothing_differs_by_what_it_requests() -> None:
    rates = MeasuredRates(600.0)
    for second in range(600):
        rates.on_requested("starved", second, 10.0)
        rates.on_requested("served", second, 100.0)
        rates.on_served("served", second, second + 1.0, 100.0)
    found = rates.difference()
    # At the ends of the run a window is only partly within it, nowhere else.
    assert found.max == pytest.approx(10.0)
    assert found.avg == pytest.approx(10.0, rel=0.01)


def test_a_tenant_that_gets_all_it_requests_does_not_differ() -> None:
    rates = MeasuredRates(600.0)
    for second in range(600):
        for tenant, service in (("modest", 10.0), ("greedy", 100.0)):
            rates.on_requested(tenant, second, service)
            rates.on_served(tenant, second, second + 1.0, service)
    assert rates.difference().max < 1.0


def test_a_request_counts_by_the_part_of_it_within_the_window() -> None:
    rates = MeasuredRates(600.0)
    rates.on_served("a", 0.0, 600.0, 6000.0)
    rates.on_requested("b", 58.5, 600.0)
    # a is served 10 a second everywhere; b asked 600 within the first window and by the second's edge, and got none.
    found = rates.difference()
    assert found.max == pytest.approx(10.0)
    assert found.avg == pytest.approx(10.0 * 2 / POINTS)


@given(
    st.floats(90.0, 5000.0),
    st.lists(st.tuples(st.floats(0, 6000), st.floats(0, 900), st.floats(1, 1000)), max_size=8),
)
def test_points_touched_are_those_of_the_definition(horizon_s: float, served: list[tuple[float, float, float]]) -> None:
    rates, expected = MeasuredRates(horizon_s), [0.0] * POINTS
    for first_s, lasts_s, service in served:
        rates.on_served("a", first_s, first_s + lasts_s, service)
        for point in range(POINTS):
            middle_s = 30 + (horizon_s - 30) / 20 * (point + 1)
            low_s, high_s = max(first_s, middle_s - 30), min(first_s + lasts_s, middle_s + 30)
            if first_s + lasts_s > first_s:
                expected[point] += service * max(0.0, high_s - low_s) / ((first_s + lasts_s) - first_s) / 60
            elif low_s <= high_s:
                expected[point] += service / 60
    found = rates._service.get("a", [0.0] * POINTS)
    assert all(math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-6) for x, y in zip(found, expected, strict=True))


def request(times_s: tuple[float, ...], tenant: str = "a", tokens: tuple[int, int] = (100, 50)) -> SimRequest:
    """Times: sent, admitted, first token, last token."""
    arrival = Arrival(times_s[0], tenant, *tokens)
    return SimRequest(
        "", arrival, times_s[0], admitted_s=times_s[1], first_token_s=times_s[2], finish_s=times_s[3]
    )  # fmt: skip


def timeline(horizon_s: float, *requests: SimRequest) -> Timeline:
    collector = TimelineCollector(horizon_s)
    for one in requests:
        collector.on_served(one, 200.0)
    return collector.timeline()


def test_one_request() -> None:
    """Bins of one second: it waits 2.5 s from 1.0, is prefilled for 0.5 s, and gets its tokens in two seconds."""
    line = timeline(120.0, request((1.0, 3.5, 4.0, 6.0)))
    assert line.bin_s == 1.0
    assert line.times_s[:3] == [0.5, 1.5, 2.5]
    assert line.queue["a"] == [0, 1, 1, 0.5, 0, 0, 0]
    assert line.demand_rate["a"] == [0, 200, 0, 0, 0, 0, 0]
    assert line.service_rate["a"] == [0, 0, 0, 0, 100, 100, 0]
    assert line.response_s["a"] == [None, 3.0, None, None, None, None, None]
    assert line.kv_tokens == pytest.approx([0, 0, 0, 50, 112.5, 137.5, 0])


def test_an_answer_of_one_token_is_received_at_once() -> None:
    assert timeline(120.0, request((0.0, 0.0, 1.5, 1.5))).service_rate["a"] == [0, 200]


def test_the_response_of_a_bin_is_the_mean_of_what_was_sent_in_it() -> None:
    line = timeline(120.0, request((1.0, 2.0, 2.0, 3.0)), request((1.5, 4.0, 4.5, 9.0)))
    assert line.response_s["a"][1] == 2.0


times = st.lists(st.floats(0, 1e5), min_size=4, max_size=4).map(lambda at: tuple(sorted(at)))


@hypothesis.given(st.floats(0, 2e5), st.lists(st.tuples(times, st.sampled_from("ab")), min_size=1, max_size=8))
def test_sums_over_the_bins_are_the_requests(horizon_s: float, given: list[tuple[tuple[float, ...], str]]) -> None:
    line = timeline(horizon_s, *(request(at, tenant) for at, tenant in given))
    assert len(line.times_s) <= BINS_MAX
    for tenant in line.service_rate:
        own = [at for at, name in given if name == tenant]
        columns = (line.service_rate, line.demand_rate, line.queue)
        assert all(len(column[tenant]) == len(line.times_s) for column in (*columns, line.response_s))
        service, demand, waited_s = (line.bin_s * sum(column[tenant]) for column in columns)
        assert service == pytest.approx(200.0 * len(own))
        assert demand == pytest.approx(200.0 * len(own))
        assert waited_s == pytest.approx(sum(at[1] - at[0] for at in own), abs=1e-6)
    held = sum(100 * (at[2] - at[1]) + 125 * (at[3] - at[2]) for at, _ in given)
    assert line.bin_s * sum(line.kv_tokens) == pytest.approx(held, abs=1e-3)


def test_only_a_tenant_that_waits_is_behind() -> None:
    line = Timeline(
        2.0,
        [1.0, 3.0, 5.0, 7.0],
        service_rate={"a": [10.0, 10.0, 10.0, 10.0], "b": [4.0, 4.0, 0.0, 1.0], "c": [1.0, 1.0, 1.0, 1.0]},
        demand_rate={},
        response_s={},
        queue={},
        kv_tokens=[],
        backlog={"a": [90.0, 90.0, 90.0, 90.0], "b": [80.0, 80.0, 0.0, 7.0], "c": [0.0, 0.0, 0.0, 0.0]},
    )
    # Half of 28, less 8; the same again; alone; half of 22, less 2, but only 7 wait.
    assert furthest_behind(line) == [6.0, 12.0, 0.0, 7.0]
    weighted = replace(line, weights={"a": 6.0, "b": 1.0})
    assert furthest_behind(weighted) == pytest.approx([4.0, 8.0, 8.0, 8.0 - 8 / 7])  # a waits on, alone


def test_vtc_bounds_how_far_a_tenant_is_behind_and_fcfs_does_not() -> None:
    arrivals = [Arrival(n * 0.02, "greedy" if n % 4 else "modest", 60, 90) for n in range(3600)]
    spec = RunSpec(ListWorkload("some", arrivals), "vtc", load_profile(), timeline=True)
    furthest = {}
    for policy in ("fcfs", "vtc"):
        run = simulate(replace(spec, policy=policy))
        assert run.timeline is not None
        furthest[policy] = max(furthest_behind(run.timeline))
    assert furthest["vtc"] < 2 * 2 * 10_000  # 2U of the VTC paper: twice the output price of a full pool
    assert furthest["fcfs"] > 2 * furthest["vtc"]


def test_a_wait_that_ends_when_announced_is_half_within_the_median() -> None:
    coverage = WaitCoverage()
    for waited_s in (1.0, 5.0, 5.0004, 9.0, 21.0):
        coverage.note(5.0, 20.0, waited_s)
    assert (coverage.exact, coverage.within_p50, coverage.within_p90) == (2, 2.0, 4)
    twice = WaitCoverage()
    twice.add(coverage)
    twice.add(coverage)
    assert (twice.announced, twice.exact, twice.p50) == (10, 4, coverage.p50)


@given(st.lists(st.tuples(*[st.floats(0, 650)] * 3), max_size=30))
def test_a_request_that_touches_no_window_is_left_out_rightly(requests: list[tuple[float, float, float]]) -> None:
    at_once, apart = MeasuredRates(600.0), MeasuredRates(600.0)
    for number, times in enumerate(requests):
        (sent_s, first_s, last_s), tenant = sorted(times), "ab"[number % 2]
        at_once.on_ended(tenant, sent_s, first_s, last_s, 10.0)
        apart.on_requested(tenant, sent_s, 10.0)
        apart.on_served(tenant, first_s, last_s, 10.0)
    assert at_once.difference() == apart.difference()


def test_a_short_request_between_the_windows_of_a_long_run_is_left_out() -> None:
    at_once, apart = MeasuredRates(6000.0), MeasuredRates(6000.0)
    for sent_s in range(0, 6000, 7):
        at_once.on_ended("a", sent_s, sent_s + 1.0, sent_s + 5.0, 10.0)
        apart.on_requested("a", sent_s, 10.0)
        apart.on_served("a", sent_s + 1.0, sent_s + 5.0, 10.0)
        at_once.on_ended("b", sent_s, sent_s, sent_s, 1.0)
        apart.on_requested("b", sent_s, 1.0)
        apart.on_served("b", sent_s, sent_s, 1.0)
    assert at_once.difference() == apart.difference()


class _CountedSums(dict[tuple[str, ...], Any]):
    """Counts how often it is read from the first tenant to the last."""

    passes = 0

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        self.passes += 1
        return super().__iter__()

    def items(self) -> Any:
        self.passes += 1
        return super().items()


def test_the_measures_of_all_tenants_take_one_pass() -> None:
    """100,000 tenants had taken ten minutes: one pass for each."""
    collector = Collector(WEIGHTED_TOKENS, 0.0)
    for number in range(50):
        collector.on_served(request((0.0, 0.0, 1.0, 2.0), f"t{number % 5}"))
    counted = _CountedSums(collector._sums)
    collector._sums = counted
    assert {name: each.requests for name, each in collector.tenants().items()} == {f"t{n}": 10 for n in range(5)}
    assert counted.passes == 1
