"""A run by bins: nothing is lost between them, however they are laid."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st

from headgate.simulator.measures.timeline import BINS_MAX, Timeline, TimelineCollector
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival


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
