"""The measured capacity of a worker, in service units a second."""

from __future__ import annotations

from gpu_worker.policies.capacity import MeasuredCapacity


class TestCapacity:
    def test_the_best_stretch_that_was_full_at_both_ends(self) -> None:
        capacity = MeasuredCapacity()
        assert capacity.observe(0, 0, saturated=True) == 0
        assert capacity.observe(2, 100, saturated=True) == 50
        assert capacity.observe(4, 1000, saturated=False) == 50  # it ran dry somewhere in between
        assert capacity.observe(6, 2000, saturated=True) == 50
        assert capacity.observe(8, 2200, saturated=True) == 100

    def test_what_is_known_outlives_the_window(self) -> None:
        capacity = MeasuredCapacity(window_s=10)
        capacity.observe(0, 0, saturated=True)
        capacity.observe(2, 100, saturated=True)
        assert capacity.observe(1000, 100, saturated=False) == 50
        capacity.observe(1002, 110, saturated=True)
        assert capacity.observe(1004, 120, saturated=True) == 5  # slower now, and nothing better in the window

    def test_a_hung_engine_does_not_make_the_capacity_unknown(self) -> None:
        capacity = MeasuredCapacity(window_s=10)
        capacity.observe(0, 0, saturated=True)
        capacity.observe(2, 100, saturated=True)
        assert [capacity.observe(second, 100, saturated=True) for second in range(3, 100)] == [50] * 97
