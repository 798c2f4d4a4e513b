"""How claims are judged: figures of many cases in one claim, and drawn arrivals over seeds."""

from __future__ import annotations

import pytest

from headgate.evidence.preemption.scene import holds
from headgate.evidence.runs import all_within


def test_one_case_outside_fails_the_claim_of_all_and_is_shown() -> None:
    pairs = {"fcfs": (100.0, 101.0), "vtc": (90.0, 100.0), "rpm": (50.0, 50.0)}
    found = all_within("throughput", pairs, 0.04)
    assert found.held is False
    assert found.found == "3 figures; furthest off is vtc: 90 against 100: -10.0%"
    assert (found.ours, found.theirs) == (90.0, 100.0)
    assert all_within("throughput", pairs, 0.11).held is True


@pytest.mark.parametrize(("misses", "held"), [(0, True), (1, True), (2, False)])
def test_a_claim_holds_in_the_mean_and_in_nine_of_ten_seeds(misses: int, held: bool) -> None:
    seconds = [0.2] * misses + [0.01] * (10 - misses)
    assert holds("below 0.1 s", seconds, lambda value: value < 0.1, "{:.2f} s".format).held is held


def test_a_claim_that_holds_in_most_seeds_may_fail_in_the_mean() -> None:
    assert not holds("below 0.1 s", [0.01] * 9 + [9.0], lambda value: value < 0.1, "{:.2f} s".format).held
