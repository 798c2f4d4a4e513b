"""Each seeded bug of the storm fits the code that it changes. tests/simulation looks for the seeds that find them."""

from __future__ import annotations

import pytest

from tests.support.world.storm.bugs import BUGS
from tests.support.world.storm.bugs.registry import Bug


@pytest.mark.parametrize("bug", BUGS.values(), ids=list(BUGS))
def test_the_bug_can_be_planted(bug: Bug) -> None:
    with bug.planted():
        pass
