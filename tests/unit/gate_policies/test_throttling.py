"""FairServe's throttling: nothing while there is room, nothing halfway, and no more than the limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.policies import throttling
from dispatcher.policies.throttling import Throttle, Throttled, ThrottleLimits


def test_a_refusal_says_which_limit_and_when_there_is_room() -> None:
    throttle = Throttle(ThrottleLimits(user=2, app=3, window_s=60.0))
    for at_s, user in ((0.0, "u"), (10.0, "u"), (20.0, "v")):
        assert throttle.decide(user, "a", at_s, saturated=True, under_way=False) is None
    assert throttle.decide("u", "b", 30.0, saturated=True, under_way=False) == Throttled("user", 2, 30.0)
    assert throttle.decide("w", "a", 40.0, saturated=True, under_way=False) == Throttled("app", 3, 20.0)
    assert throttle.decide("u", "b", 60.0, saturated=True, under_way=False) is None


def test_where_both_limits_are_full_the_time_is_that_of_the_later() -> None:
    throttle = Throttle(ThrottleLimits(user=1, app=1))
    throttle.decide("u", "a", 0.0, saturated=False, under_way=False)
    throttle.decide("v", "b", 20.0, saturated=False, under_way=False)
    assert throttle.decide("u", "b", 30.0, saturated=True, under_way=False) == Throttled("app", 1, 50.0)
    assert throttle.decide("v", "a", 30.0, saturated=True, under_way=False) == Throttled("user", 1, 50.0)


def test_the_time_is_never_more_than_the_window() -> None:
    throttle, now_s = Throttle(ThrottleLimits(user=1, app=9)), 4.4
    assert now_s + 60.0 - now_s > 60.0
    assert throttle.decide("u", "a", now_s, saturated=True, under_way=False) is None
    assert throttle.decide("u", "a", now_s, saturated=True, under_way=False) == Throttled("user", 1, 60.0)


def test_an_application_may_have_its_own_limit() -> None:
    throttle = Throttle(ThrottleLimits(user=100, app=100, apps={"small": 1}))
    assert throttle.decide("u", "small", 0.0, saturated=True, under_way=False) is None
    assert throttle.decide("v", "small", 0.0, saturated=True, under_way=False) is not None
    assert throttle.decide("v", "other", 0.0, saturated=True, under_way=False) is None


@pytest.mark.parametrize("wrong", [{"user": 0}, {"app": 0}, {"apps": {"a": 0}}, {"window_s": 0.0}])
def test_limits_that_admit_no_request_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        ThrottleLimits(**{"user": 1, "app": 1, **wrong})  # type: ignore[arg-type]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttling, "KEPT_MAX", 10)
    throttle = Throttle(ThrottleLimits(user=2, app=2))
    for number in range(1000):
        throttle.decide(f"u{number}", f"a{number}", float(number), saturated=False, under_way=False)
    assert len(throttle._users) == len(throttle._apps) == 10


def test_the_user_admitted_longest_ago_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttling, "KEPT_MAX", 2)
    throttle = Throttle(ThrottleLimits(user=1, app=100))
    for at_s, user in enumerate(("old", "late", "old", "new")):
        throttle.decide(user, "a", float(at_s), saturated=False, under_way=False)
    assert throttle.decide("old", "a", 4.0, saturated=True, under_way=False) == Throttled("user", 1, 58.0)
    assert throttle.decide("late", "a", 4.0, saturated=True, under_way=False) is None


calls = st.tuples(
    st.floats(0, 30), st.sampled_from("uvw"), st.sampled_from("ab"), st.booleans(), st.booleans()
)  # fmt: skip


@given(st.lists(calls, max_size=80), st.integers(1, 5), st.integers(1, 8))
def test_as_a_count_of_the_trailing_window_says(
    gaps: list[tuple[float, str, str, bool, bool]], user_max: int, app_max: int
) -> None:
    throttle, now_s = Throttle(ThrottleLimits(user_max, app_max)), 0.0
    let_in: list[tuple[float, str, str]] = []
    for gap_s, user, app, saturated, under_way in gaps:
        now_s += gap_s
        recent = [one for one in let_in if now_s - one[0] < 60.0]
        full = (
            sum(one[1] == user for one in recent) >= user_max or sum(one[2] == app for one in recent) >= app_max
        )  # fmt: skip
        refused = throttle.decide(user, app, now_s, saturated=saturated, under_way=under_way)
        assert (refused is not None) == (saturated and not under_way and full)
        if refused is None:
            let_in.append((now_s, user, app))
        else:
            assert 0 < refused.retry_after_s <= 60.0
