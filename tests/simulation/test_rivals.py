"""The rules of other gateways, one by one, and the processes that share workers: each by a case worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.evidence.rivals.deciders import DELAY_S, OURS, OneLog, Replicas, Sent, play
from headgate.evidence.rivals.policies import RIVALS, AttainedService, Head, SlidingWindow, StartTimeFairQueueing
from headgate.evidence.rivals.scenes import EVEN, SKEWED, Job, play_job

every_rule = pytest.mark.parametrize("name", sorted(RIVALS))


def order_of(name: str, costs: Mapping[str, float], count: int, weights: Mapping[str, float] | None = None) -> str:
    """Return whose requests start, in order, on one worker, if every tenant has many of them at time 0."""
    sent = [Sent(0.0, tenant, cost, 0) for _ in range(count) for tenant, cost in costs.items()]
    played = play(Replicas(lambda: RIVALS[name](weights or {}), 1, 1), sent, inf)
    starts = sorted(zip(played.starts_s, [each.tenant for each in sent], strict=True))
    return "".join(tenant for _, tenant in starts)[:count]


def test_a_request_that_costs_twice_as_much() -> None:
    costs = {"a": 2.0, "b": 1.0}
    assert order_of("round robin", costs, 8) == "abababab"
    for name in ("deficit round robin", "start-time fair"):
        found = order_of(name, costs, 12)
        assert abs(found.count("b") - 2 * found.count("a")) <= 2, found


def test_weights_count_where_a_rule_has_them() -> None:
    for name in ("deficit round robin", "start-time fair"):
        found = order_of(name, {"a": 1.0, "b": 1.0}, 50, {"a": 4.0})
        assert 39 <= found.count("a") <= 41, name
    assert order_of("round robin", {"a": 1.0, "b": 1.0}, 50, {"a": 4.0}).count("a") == 25


def test_attained_service_halves_every_minute_and_the_age_breaks_ties() -> None:
    rule = AttainedService({})
    rule.on_ended("a", 8.0, 0.0)
    rule.on_ended("b", 3.0, 120.0)
    heads = {"a": Head(0, 1.0, 120.0, 0.0), "b": Head(1, 1.0, 120.0, 0.0)}
    assert rule.choose(heads, 120.0) == "a"  # 8 halved twice is 2
    rule.on_ended("a", 2.0, 120.0)
    assert rule.choose(heads, 120.0) == "b"
    alike = AttainedService({})
    assert alike.choose({"a": Head(0, 1.0, 5.0, 0.0), "b": Head(1, 1.0, 2.0, 0.0)}, 10.0) == "b"


def test_a_window_forgets_what_ended_before_it() -> None:
    rule = SlidingWindow({})
    rule.on_ended("a", 4.0, 0.0)
    rule.on_ended("a", 2.0, 200.0)
    assert rule.tag("a", 1.0, 299.0) == 7.0
    assert rule.tag("a", 1.0, 301.0) == 3.0
    assert rule.tag("b", 1.0, 301.0) == 1.0


def test_a_tenant_that_was_away_joins_at_the_virtual_time() -> None:
    rule = StartTimeFairQueueing({})
    tags = [rule.tag("a", 1.0, 0.0) for _ in range(3)]
    assert tags == [0.0, 1.0, 2.0]
    rule.choose({"a": Head(2, 1.0, 0.0, tags[2])}, 2.0)
    assert rule.tag("b", 1.0, 2.0) == 2.0


requests = st.lists(
    st.builds(Sent, st.floats(0, 20), st.sampled_from("abc"), st.floats(0.1, 5.0), st.integers(0, 2)), max_size=40
).map(lambda found: sorted(found, key=lambda each: each.arrival_s))


@every_rule
@given(requests, st.integers(1, 4))
def test_no_worker_is_idle_while_a_request_waits_at_any_process(name: str, sent: list[Sent], workers: int) -> None:
    played = play(Replicas(lambda: RIVALS[name]({}), 3, workers), sent, inf)
    spans = [(start, start + each.cost) for start, each in zip(played.starts_s, sent, strict=True)]
    for (start, _), each in zip(spans, sent, strict=True):
        assert each.arrival_s <= start < inf
        if start > each.arrival_s:
            running = [1 for first, last in spans if first < start and last >= start]
            assert len(running) >= workers, (start, spans)
    for start, _ in spans:
        assert sum(first <= start < last for first, last in spans) <= workers


@given(requests)
def test_one_log_starts_each_request_once_and_no_earlier_than_its_delay(sent: list[Sent]) -> None:
    played = play(OneLog({}, 2), sent, inf)
    assert all(each.arrival_s + DELAY_S <= start < inf for start, each in zip(played.starts_s, sent, strict=True))


def test_two_processes_turn_four_to_one_into_one_to_one() -> None:
    """The figures of the public report: 163 : 162 with skewed ingress, and about 4 : 1 without."""
    assert play_job(Job("four to one", "deficit round robin", 2, SKEWED)) == (163 / 162,)
    for front, processes, ingress in (("deficit round robin", 2, EVEN), (OURS, 2, SKEWED), (OURS, 64, SKEWED)):
        assert play_job(Job("four to one", front, processes, ingress))[0] == pytest.approx(4.0, rel=0.03)


def test_a_tenant_at_one_of_many_processes_gets_its_part_only_from_one_log() -> None:
    alone, _ = play_job(Job("shares", "start-time fair", 1, SKEWED))
    split, _ = play_job(Job("shares", "start-time fair", 8, SKEWED))
    assert alone > 0.95
    assert split < 0.5
