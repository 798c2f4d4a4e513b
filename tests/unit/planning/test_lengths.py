"""Output lengths of a group: statistics from the past."""

from __future__ import annotations

from random import Random
from statistics import fmean, pstdev

import pytest

from dispatcher.policies.planning.history import LengthHistory, Lengths, OutputHistory, lengths_without_history

PRIOR = lengths_without_history(512)


def test_without_history_the_mean_is_half_of_max_tokens() -> None:
    found = LengthHistory().lengths(PRIOR)
    assert found.output_mean == 256
    assert found.output_deviation == pytest.approx(512 / 12**0.5)


def test_a_history_outweighs_the_prior() -> None:
    history, random = LengthHistory(), Random(1)
    seen = [random.randint(50, 150) for _ in range(400)]
    for tokens in seen:
        history.observe(tokens)
    found = history.lengths(PRIOR)
    assert found.output_mean == pytest.approx(fmean(seen), rel=0.05)
    assert found.output_deviation == pytest.approx(pstdev(seen), rel=0.3)


def test_old_lengths_fade() -> None:
    history = LengthHistory()
    for tokens in [1000] * 500 + [10] * 1500:
        history.observe(tokens)
    assert history.lengths(PRIOR).output_mean < 15


def test_each_group_has_its_own_history() -> None:
    history = OutputHistory()
    for _ in range(200):
        history.observe("a", 7)
    assert history.lengths("a", PRIOR).output_mean < 12
    assert history.lengths("b", PRIOR) == PRIOR


def test_the_groups_used_least_recently_are_dropped() -> None:
    history = OutputHistory(keys_max=2)
    for key in ("a", "b", "a", "c"):
        history.observe(key, 1)
    assert len(history) == 2
    assert [history.lengths(key, PRIOR) == PRIOR for key in "abc"] == [False, True, False]
    with pytest.raises(ValueError, match="at least 1"):
        OutputHistory(0)


@pytest.mark.parametrize("tokens", [-1.0, float("nan"), float("inf")])
def test_impossible_lengths_are_refused(tokens: float) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        LengthHistory().observe(tokens)
    with pytest.raises(ValueError, match="finite and not negative"):
        Lengths(tokens, 1.0)
