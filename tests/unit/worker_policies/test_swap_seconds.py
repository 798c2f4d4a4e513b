"""The price of a swap: what is measured replaces what was believed within three swaps."""

from __future__ import annotations

import pytest

from dispatcher.shard import swapping
from gpu_worker.policies.swap_seconds import RATIO_MAX, SCALED_MAX_S, Slowness, SwapSeconds


def test_three_swaps_replace_a_belief() -> None:
    seconds = SwapSeconds(3.0)
    assert seconds.expected_s == 3.0
    for _ in range(3):
        seconds.observe(30.0)
    assert seconds.expected_s == 30.0


def test_three_slower_swaps_replace_a_long_history() -> None:
    seconds = SwapSeconds()
    for took_s in (*[3.0] * 40, *[30.0] * 3):
        seconds.observe(took_s)
    assert seconds.expected_s == 30.0


def test_two_outliers_change_nothing() -> None:
    seconds = SwapSeconds(3.0)
    for took_s in (3.0, 3.0, 600.0, 0.0):
        seconds.observe(took_s)
    assert seconds.expected_s == 3.0


def test_nothing_is_known_before_a_load() -> None:
    seconds = SwapSeconds()
    assert not seconds.is_known
    with pytest.raises(ValueError, match="no load is known"):
        _ = seconds.expected_s
    seconds.observe(1.0)
    assert seconds.is_known


def test_a_worker_with_slower_loads_expects_them_of_a_model_that_it_has_not_loaded() -> None:
    slowness = Slowness()
    first, second, third = (SwapSeconds(seconds, slowness) for seconds in (5.0, 2.0, 8.0))
    first.observe(50.0)
    assert (second.expected_s, third.expected_s) == (2.0 * 5.5, 8.0 * 5.5), "one load may be an outlier"
    second.observe(20.0)
    assert third.expected_s == 80.0
    for _ in range(5):
        third.observe(8.0)
    assert (first.expected_s, third.expected_s) == (27.5, 8.0), "what a model took itself counts too"


def test_one_outlier_makes_others_ten_times_dearer_at_most_and_until_the_next_load() -> None:
    slowness = Slowness()
    first, other = SwapSeconds(5.0, slowness), SwapSeconds(5.0, slowness)
    first.observe(500.0)
    assert other.expected_s == 5.0 * (1.0 + RATIO_MAX) / 2
    first.observe(5.0)
    assert other.expected_s == 5.0


def test_a_first_load_is_believed_and_short_ones_say_nothing_of_others() -> None:
    slowness = Slowness()
    unknown, short = SwapSeconds(None, slowness), SwapSeconds(0.02, slowness)
    unknown.observe(4.0)
    for _ in range(3):
        short.observe(3.0)
    assert (unknown.expected_s, short.expected_s, slowness.factor) == (4.0, 3.0, 1.0)
    for _ in range(2):
        unknown.observe(12.0)
    assert slowness.factor == 3.0


def test_no_belief_is_scaled_beyond_what_the_gate_loads() -> None:
    slowness = Slowness()
    slow, large, larger = (SwapSeconds(seconds, slowness) for seconds in (5.0, 200.0, 700.0))
    for _ in range(2):
        slow.observe(50.0)
    assert (large.expected_s, larger.expected_s) == (SCALED_MAX_S, 700.0)
    assert SCALED_MAX_S <= swapping._SWAP_MAX_S
