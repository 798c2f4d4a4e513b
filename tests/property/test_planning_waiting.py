"""Waiting times for any queue: never negative, monotone, ordered and bounded."""

from __future__ import annotations

from math import ceil

from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.policies.planning.fair_drain import FORECAST_S, Rival, service_of_rivals
from dispatcher.policies.planning.wait_ratios import DISPATCHES, RATIO_MAX, RATIO_MIN, WaitRatios
from dispatcher.policies.planning.waiting import Ahead, Batch, WaitingTimes, expected_wait_s

amounts = st.floats(0, 1e6)
rates = st.floats(0.1, 1e5)
batches = st.builds(Batch, amounts, amounts, st.booleans())
rivals = st.builds(Rival, amounts, st.one_of(st.just(0.0), st.floats(0, 1e4)), st.floats(0.1, 10))


@settings(max_examples=200, deadline=None)
@given(amounts, amounts, batches, rates, amounts, st.floats(0, 1e5))
def test_a_wait_is_never_negative_and_grows_with_the_queue(
    less: float, more: float, batch: Batch, capacity: float, own: float, guaranteed: float
) -> None:
    def wait(service: float) -> float:
        found = expected_wait_s(Ahead(service), batch, capacity, own=Ahead(own), guaranteed_per_s=guaranteed)
        assert found is not None
        return found

    assert 0 <= wait(less) <= wait(less + more)


@settings(max_examples=200, deadline=None)
@given(amounts, st.floats(0, 1e5), amounts, rates, amounts, st.floats(0, 3600), st.floats(0, 60))
def test_p90_is_at_least_p50_and_bounded(
    service: float, variance: float, rest: float, capacity: float, kept: float, loaded_s: float, first_s: float
) -> None:
    ahead = Ahead(service, variance)
    wait_s = expected_wait_s(ahead, Batch(rest, kept), capacity)
    found = WaitingTimes().announce(
        "a", 0.0, wait_s, ahead, capacity_per_s=capacity, kept=kept, until_loaded_s=loaded_s, first_token_s=first_s
    )
    assert found is not None
    queued_s = found.p50_s - loaded_s
    most_s = loaded_s + RATIO_MAX * queued_s + 1.28 * variance**0.5 / capacity
    assert 0 <= found.p50_s <= found.p90_s <= most_s * (1 + 1e-9) + 1e-6


@settings(max_examples=300, deadline=None)
@given(st.floats(1, 1e6), st.floats(-1e6, 1e6), st.lists(rivals, max_size=8), st.floats(1, 1e5))
def test_the_service_of_others_meets_the_capacity_first_at_its_time(
    own: float, before: float, others: list[Rival], capacity: float
) -> None:
    def due(at_s: float) -> float:
        grown = min(at_s, FORECAST_S)
        return sum(min(each.waiting + each.arriving_per_s * grown, own * each.weight) for each in others)

    found = service_of_rivals(own, before, 1.0, others, capacity)
    slack = 1e-6 * (1 + own + abs(before) + found)
    next_s = max(0.0, (before + found) / capacity)
    assert abs(due(next_s) - found) <= slack
    for part in (0.0, 0.25, 0.5, 0.75, 0.99) if next_s > 0 else ():
        assert before + due(part * next_s) >= capacity * part * next_s - slack, "the request was next before"


@settings(max_examples=200, deadline=None)
@given(st.floats(1, 1e5), st.floats(0, 1e5), amounts, st.lists(rivals, max_size=8), rates)
def test_more_of_its_own_queue_never_means_less_of_the_others(
    own: float, more: float, before: float, others: list[Rival], capacity: float
) -> None:
    short = service_of_rivals(own, before, 1.0, others, capacity)
    long = service_of_rivals(own + more, before + more, 1.0, others, capacity)
    assert long >= short - 1e-6 * (1 + short)


names = st.sampled_from("abcdefgh")
steps = st.floats(0, 20)
stories = st.lists(st.tuples(st.sampled_from(["predict", "dispatch", "left"]), names, steps), max_size=400)


@settings(max_examples=200, deadline=None)
@given(stories)
def test_the_quantile_is_that_of_a_sorted_list(story: list[tuple[str, str, float]]) -> None:
    """The classes count what a list of all ratios says, up to their width."""
    sample, now = WaitRatios(), 0.0
    waiting: dict[str, tuple[float, float]] = {}
    done: list[float] = []
    for kind, name, step in story:
        now += step
        if kind == "predict":
            sample.predicted(name, 1 + step, now)
            waiting[name] = (now, 1 + step)
        elif kind == "dispatch":
            sample.dispatched(name, now)
            if name in waiting:
                since_s, predicted_s = waiting.pop(name)
                done.append((now - since_s) / predicted_s)
        else:
            sample.left(name)
            waiting.pop(name, None)
        late = [
            (now - since_s) / predicted_s for since_s, predicted_s in waiting.values() if now > since_s + predicted_s
        ]
        ratios = sorted([*done[-DISPATCHES:], *late])
        found = sample.quantile(now)
        assert len(sample) == len(ratios)
        assert RATIO_MIN <= found <= RATIO_MAX
        if ratios:
            exact = min(RATIO_MAX, max(RATIO_MIN, ratios[ceil(0.9 * len(ratios) - 1e-9) - 1]))
            assert exact - 1e-9 <= found <= exact * 1.05 + 1e-9
