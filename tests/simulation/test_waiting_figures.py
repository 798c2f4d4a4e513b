"""The figures of the waiting time (issue 12) on a small scale: benchmarks/planning_waiting.py prints all of them."""

from __future__ import annotations

import pytest

from benchmarks.planning_waiting import COVERAGE, SPREAD_MAX, is_fair
from benchmarks.waiting.measured import replay
from benchmarks.waiting.scores import score
from headgate.evidence.qlm.full_queue import FLOORS, fits
from tests.support.simulator.paper_traces import TRACES, needs_traces


@pytest.mark.parametrize("profile", FLOORS)
def test_four_groups_are_predicted_and_better_than_by_equation_2(profile: str) -> None:
    alone, corrected = fits(profile, 4, seed=0)
    assert corrected >= FLOORS[profile]
    assert corrected > alone


@needs_traces
@pytest.mark.parametrize(
    ("run", "floor"),
    [
        ("real.fcfs", 0.85),
        ("overload-multi.fcfs", 0.85),
        ("real.rpm30", 0.8),
        ("real.vtc", 0.8),
        ("proportional.vtc", 0.8),
        ("on_off_less.vtc", 0.8),
    ],
)
def test_measured_waits_are_predicted_from_the_past(run: str, floor: float) -> None:
    path = TRACES / "vtc" / "measured" / f"{run}.csv"
    found = score(replay(path, fair=is_fair(path)))
    assert found.r_squared >= floor
    assert found.coverage >= COVERAGE[0]
    assert found.spread <= (SPREAD_MAX if run != "real.vtc" else 2.0), "a P90 of 4 times P50 would cover everything"


@needs_traces
def test_a_fair_run_needs_the_fair_order() -> None:
    path = TRACES / "vtc" / "measured" / "proportional.vtc.csv"
    assert score(replay(path, fair=False)).r_squared < 0.5


@needs_traces
def test_without_congestion_no_waiting_time_is_announced() -> None:
    path = TRACES / "vtc" / "measured" / "real.rpm5.csv"
    assert replay(path, fair=False) == []
