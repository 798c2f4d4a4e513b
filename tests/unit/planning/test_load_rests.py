"""The rest of a load, from the lateness of earlier ones."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest

from dispatcher.policies.planning.load_rests import load_rest

SWAP_S, HEARTBEAT_S = 2.0, 1.0


def test_the_prior_follows_from_the_heartbeats_alone() -> None:
    rest = load_rest((), SWAP_S, 0.0, HEARTBEAT_S)
    assert SWAP_S <= rest.p10 < rest.p50 < SWAP_S + HEARTBEAT_S <= rest.p90 <= SWAP_S + 2 * HEARTBEAT_S
    assert load_rest((), SWAP_S, 0.0, 0.0) == (SWAP_S, SWAP_S, SWAP_S), "without reports it is exact"


def test_a_wrong_belief_is_learned_from_three_loads() -> None:
    assert load_rest([18.0] * 3, SWAP_S, 0.0, HEARTBEAT_S).p50 == pytest.approx(20.0)
    assert load_rest([18.0] * 3, SWAP_S, 10.0, HEARTBEAT_S).p50 == pytest.approx(10.0)
    assert load_rest([18.0], SWAP_S, 0.0, HEARTBEAT_S).p90 > 15.0, "one load makes P90 wide"


def test_a_load_that_is_overdue_lasts_a_part_of_its_time_longer() -> None:
    rests = [load_rest((), SWAP_S, elapsed_s, HEARTBEAT_S) for elapsed_s in (10.0, 100.0)]
    assert 0.0 < rests[0].p50 < rests[0].p90 < 10.0
    assert rests[1] == pytest.approx([10 * each for each in rests[0]])


def test_the_quantiles_cover_loads_that_are_late_by_a_heartbeat_and_a_report() -> None:
    random = Random("loads")
    within_p50, within_p90, last = list[bool](), list[bool](), list[float]()
    for _ in range(600):
        late = random.uniform(0.0, HEARTBEAT_S) + random.uniform(0.0, 0.15)
        for elapsed_s in (0.0, 0.5, 1.0, 1.5):
            rest = load_rest(last, SWAP_S, elapsed_s, HEARTBEAT_S)
            within_p50.append(SWAP_S + late - elapsed_s <= rest.p50)
            within_p90.append(SWAP_S + late - elapsed_s <= rest.p90)
        last = [*last, late][-12:]
    assert 0.4 <= fmean(within_p50) <= 0.6
    assert 0.85 <= fmean(within_p90) <= 0.97
