"""Request groups: keys, order, folding, figures, and pieces for the planner."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from dispatcher.policies.planning.groups import GROUPS_MAX, GroupedRequest, GroupFigures, GroupKey, TenantGroups, split
from dispatcher.policies.planning.history import OutputHistory
from dispatcher.policies.planning.slo import SloClass, SloClasses

ARRIVALS = count()


def request(
    model: str = "m", slo_class: str = "normal", *, tokens: int = 100, max_tokens: int = 200, due_at: float = 0.0
) -> GroupedRequest:
    arrival = next(ARRIVALS)
    return GroupedRequest(f"r{arrival}", model, slo_class, tokens, max_tokens, due_at, arrival)


def groups_with(*requests: GroupedRequest) -> TenantGroups:
    groups = TenantGroups(SloClasses(), OutputHistory())
    for each in requests:
        groups.add(each)
    return groups


def test_a_group_has_one_model_class_and_length() -> None:
    groups = groups_with(
        *(request("a", tokens=tokens) for tokens in (0, 512, 513, 2048, 2049, 10**9)),
        request("b"),
        request("a", "interactive"),
    )
    assert {each.key: each.requests for each in groups.figures()} == {
        GroupKey("a", "normal", 0): 2,
        GroupKey("a", "normal", 1): 2,
        GroupKey("a", "normal", 2): 2,
        GroupKey("b", "normal", 0): 1,
        GroupKey("a", "interactive", 0): 1,
    }


@pytest.mark.parametrize("order", [lambda at: at, lambda at: -at, lambda at: at * 7919 % 1_009])
def test_requests_that_return_at_once_take_their_old_places(order: Callable[[int], int]) -> None:
    """As when a silent process returns. (tests/property/test_planning_groups.py returns a few.)"""
    requests = [request() for _ in range(3_000)]
    groups = groups_with(*requests)
    for each in requests[500:1_500]:
        groups.remove(each)
    for at in sorted(range(1_000), key=order):
        groups.add(requests[500 + at])
    for each in requests:
        assert groups.head("m") is each
        groups.remove(each)


def test_further_keys_join_the_laxest_group_of_their_class_or_model() -> None:
    models = [request(f"m{number}") for number in range(GROUPS_MAX - 3)]
    groups = groups_with(*models, request("m", "normal"), request("m", "normal", tokens=600), request("m", "batch"))
    long, chat = request("m", "normal", tokens=9000), request("m", "interactive", due_at=-1.0)
    groups.add(long)
    groups.add(chat)
    assert long.group_key == GroupKey("m", "normal", 1)
    assert chat.group_key == GroupKey("m", "batch", 0)
    assert chat.due_at == -1.0
    assert len(groups) == GROUPS_MAX


def test_ten_thousand_models_need_a_group_each_and_no_more() -> None:
    requests = [request(f"m{number}", tokens=1000 * turn) for turn in range(3) for number in range(10_000)]
    groups = groups_with(*requests)
    assert len(groups) == 10_000
    assert groups.head("m9999") is requests[9_999]
    for each in requests:
        groups.remove(each)
    assert len(groups) == 0


def test_eight_classes_of_one_model_fit() -> None:
    classes = SloClasses([SloClass(f"c{number}", 1.0 + number) for number in range(8)])
    groups = TenantGroups(classes, OutputHistory())
    for number in range(8):
        for tokens in (1, 600, 3000):
            groups.add(request(slo_class=f"c{number}", tokens=tokens))
    assert len(groups) == GROUPS_MAX


def test_without_history_an_output_is_half_of_max_tokens() -> None:
    (figures,) = groups_with(request(tokens=100, max_tokens=200, due_at=3.0), request(max_tokens=400)).figures()
    assert figures.output_mean == 150.0
    assert figures.output_deviation == pytest.approx(300 / 12**0.5)
    assert figures.expected_service == 200 + 2 * 2 * 150.0
    assert (figures.due_at, figures.last_due_at) == (3.0, 0.0)


def test_with_history_an_output_is_as_before_but_at_most_max_tokens() -> None:
    history = OutputHistory()
    groups = TenantGroups(SloClasses(), history)
    groups.add(request(tokens=10, max_tokens=1000))
    groups.add(request("other", max_tokens=30))
    for output in [40, 60] * 1000:
        history.observe(GroupKey("m", "normal", 0), output)
        history.observe(GroupKey("other", "normal", 0), output)
    figures = {each.key.model: each for each in groups.figures()}
    assert figures["m"].output_mean == pytest.approx(50.0, abs=5.0)  # the prior of 500 still counts as two of 200
    assert figures["m"].expected_service == pytest.approx(10 + 2 * figures["m"].output_mean)
    assert figures["other"].output_mean == 30.0


def test_mistakes_are_refused() -> None:
    groups, waiting = groups_with(), request()
    with pytest.raises(ValueError, match="unknown SLO class 'urgent'"):
        groups.add(request(slo_class="urgent"))
    with pytest.raises(ValueError, match="does not wait"):
        groups.remove(waiting)
    groups.add(waiting)
    with pytest.raises(ValueError, match="waits already"):
        groups.add(waiting)
    with pytest.raises(ValueError, match="waits already"):
        groups.add(GroupedRequest(waiting.id, "m", "normal", 1, 1, 0.0, next(ARRIVALS)))
    assert [each.requests for each in groups.figures()] == [1]


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "due_at"), [(-1, 1, 0.0), (1, -1, 0.0), (1, 1, float("inf")), (1, 1, float("nan"))]
)
def test_impossible_requests_are_refused(tokens: int, max_tokens: int, due_at: float) -> None:
    with pytest.raises(ValueError, match="request"):
        request(tokens=tokens, max_tokens=max_tokens, due_at=due_at)


def figures_of(requests: int, due_at: float = 0.0, last_due_at: float = 0.0) -> GroupFigures:
    return GroupFigures(GroupKey("m", "normal", 0), requests, 3.0 * requests, 1.0, 0.5, due_at, last_due_at)


def test_a_group_of_at_most_four_batches_is_not_split() -> None:
    assert split(figures_of(80, 5.0, 6.0), 20) == [figures_of(80, 5.0, 6.0)]


def test_a_large_group_is_split_into_even_pieces_in_order() -> None:
    pieces = split(figures_of(101, 0.0, 100.0), 20, delta=1)
    assert [each.requests for each in pieces] == [16, 17, 17, 17, 17, 17]
    assert [each.due_at for each in pieces] == [0.0, 16.0, 33.0, 50.0, 67.0, 84.0]
    assert pieces[-1].last_due_at == 100.0
    assert sum(each.expected_service for each in pieces) == pytest.approx(303.0)
    assert {(each.output_mean, each.output_deviation) for each in pieces} == {(1.0, 0.5)}


def test_pieces_are_due_no_earlier_than_their_group() -> None:
    assert {each.due_at for each in split(figures_of(10, 50.0, 20.0), 1)} == {50.0}


@pytest.mark.parametrize(("batch_size", "delta"), [(0, 4), (20, 0)])
def test_an_impossible_size_is_refused(batch_size: int, delta: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        split(figures_of(1), batch_size, delta)
