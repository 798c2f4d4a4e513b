"""Every seeded bug is found by an oracle within 2,000 seeds. First the seed that found it before is tried."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.gate.storm.bugs import BUGS
from tests.support.gate.storm.bugs.registry import Bug
from tests.support.gate.storm.simulation import run
from tests.support.gate.storm.weather import draw

SEEDS = 2000
BUGS_MIN = 26
"""Those of the sixteen rules that concern code, and ten more."""


def test_there_are_enough_bugs() -> None:
    assert len(BUGS) >= BUGS_MIN


@pytest.mark.parametrize("bug", BUGS.values(), ids=list(BUGS))
def test_the_bug_is_found(bug: Bug) -> None:
    for seed in seeds(bug):
        if run(draw(seed), bug=bug.planted()).violations:
            return
    pytest.fail(f"{bug.name} was not found in {SEEDS} seeds: {bug.what}")


def seeds(bug: Bug) -> Iterator[int]:
    if bug.seed:
        yield bug.seed
    yield from range(SEEDS)
