"""The price of a swap: what is measured replaces what was believed within three swaps."""

from __future__ import annotations

from statistics import StatisticsError

import pytest

from gpu_worker.policies.swap_seconds import SwapSeconds


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
    with pytest.raises(StatisticsError):
        _ = seconds.expected_s
    seconds.observe(1.0)
    assert seconds.is_known
