"""The gate under every fault that a seed draws: no oracle finds a violation, and a seed runs the same way each time.

`make storm` runs 10,000 seeds, which a change of the gate must pass.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.duration import at_depth
from tests.support.world.storm.simulation import run
from tests.support.world.storm.weather import SHARDED_FROM, draw

SEEDS = at_depth(400, 4_000)
"""A seed takes 0.085 s of one core. `make storm` has 10,000, for a change of the gate; and
benchmarks/results/gate_storm.md the record of many more:
`python -m tests.support.world.storm --seeds A:B --processes 2 --results FILE`.
"""
PARTS = 10
SHARDED = 12
EIGHT_FRONTS = at_depth(40, 200)
DIGESTS = "import sys; from tests.simulation.test_storm import digests; print(digests(int(sys.argv[1])))"


def check(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        violations = run(draw(seed)).violations
        assert not violations, f"python -m tests.support.world.storm --trace --seeds {seed}: {violations[0]}"


def test_nothing_is_violated_in_a_tenth_of_the_seeds() -> None:
    """The part of the storm that `make test` runs."""
    check(0)


class TestMoreSeeds:
    """A class of its own, because pytest-xdist (--dist loadscope) gives a class to one process."""

    @pytest.mark.parametrize("part", range(2, PARTS, 2))
    def test_nothing_is_violated(self, part: int) -> None:
        check(part)


class TestStillMoreSeeds:
    @pytest.mark.parametrize("part", range(1, PARTS, 2))
    def test_nothing_is_violated(self, part: int) -> None:
        check(part)


def test_nothing_is_violated_in_a_pool_of_several_shards() -> None:
    for seed in range(SHARDED_FROM, SHARDED_FROM + SHARDED):
        violations = run(draw(seed)).violations
        assert not violations, f"python -m tests.support.world.storm --trace --seeds {seed}: {violations[0]}"


def test_nothing_is_violated_with_eight_fronts() -> None:
    for seed in range(EIGHT_FRONTS):
        violations = run(draw(seed, fronts=8)).violations
        assert not violations, f"python -m tests.support.world.storm --fronts 8 --seeds {seed}: {violations[0]}"


def digests(count: int) -> list[str]:
    """Return the digests of everything that happens in the first seeds."""
    return [run(draw(seed)).digest for seed in range(count)]


def test_a_seed_runs_the_same_way_each_time() -> None:
    """Also in another process, where sets of strings have another order."""
    other = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DIGESTS, "20"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(sys.path)},
    )
    assert other.stdout.strip() == str(digests(20))
