"""Seeded bugs are found by an oracle: of the rules of docs/gate.md, each removed, and of mistakes in the code.

A change of the code moves the seed that finds a bug; then the next ones are tried.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.gate.storm.bugs import BUGS
from tests.support.gate.storm.bugs.found import FOUND
from tests.support.gate.storm.bugs.registry import Bug
from tests.support.gate.storm.simulation import run
from tests.support.gate.storm.weather import draw

SEEDS = 2000
FOUND_MIN = 30
"""Those of the sixteen rules that concern code, and as many more."""


def test_enough_bugs_are_found() -> None:
    assert len(FOUND) >= FOUND_MIN
    assert FOUND.keys() <= BUGS.keys()


@pytest.mark.parametrize("bug", BUGS.values(), ids=list(BUGS))
def test_the_bug_is_found(bug: Bug) -> None:
    if bug.name not in FOUND:
        with bug.planted():  # it must at least follow the code
            pytest.skip("not found within 150 seeds: only longer runs of the storm may find it")
    for seed in seeds(bug):
        if run(draw(seed), bug=bug.planted()).violations:
            return
    pytest.fail(f"{bug.name} was not found in {SEEDS} seeds: {bug.what}")


def seeds(bug: Bug) -> Iterator[int]:
    yield FOUND[bug.name]
    yield from range(SEEDS)
