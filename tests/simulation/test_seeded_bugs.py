"""Seeded bugs are found by an oracle: of the rules of docs/gate.md, each removed, and of mistakes in the code.

A change of the code moves the seed that finds a bug; then the next ones are tried.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.world.storm.bugs import BUGS
from tests.support.world.storm.bugs.found import BY_LIVENESS, FOUND
from tests.support.world.storm.bugs.registry import Bug
from tests.support.world.storm.oracles.liveness import LIVENESS
from tests.support.world.storm.simulation import run
from tests.support.world.storm.weather import draw
from tests.support.world.storm.world import Violation

SEEDS = 2000
RULES = {*range(1, 18)} - {9}
"""The rules of docs/gate.md. Rule 9 says that there is no inbox, so no code keeps it."""
MISTAKES_MIN = 10


def test_each_rule_is_removed_and_mistakes_are_made() -> None:
    assert {bug.rule for bug in BUGS.values()} - {0} == RULES
    assert sum(bug.rule == 0 for bug in BUGS.values()) >= MISTAKES_MIN
    assert BY_LIVENESS <= FOUND.keys() <= BUGS.keys()


@pytest.mark.parametrize("bug", BUGS.values(), ids=list(BUGS))
def test_the_bug_is_found(bug: Bug) -> None:
    violation = found(bug)
    assert violation is not None, f"{bug.name} was not found in {SEEDS} seeds: {bug.what}"
    if bug.name in BY_LIVENESS:
        assert violation.oracle in LIVENESS


def found(bug: Bug) -> Violation | None:
    """Return the first violation in the first seed that has some."""
    for seed in seeds(bug):
        if violations := run(draw(seed), bug=bug.planted()).violations:
            return violations[0]
    return None


def seeds(bug: Bug) -> Iterator[int]:
    if bug.name in FOUND:
        yield FOUND[bug.name]
    yield from range(SEEDS)
