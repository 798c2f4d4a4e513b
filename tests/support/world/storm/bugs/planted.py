"""A pytest plugin that runs tests with a seeded bug in the code:

HEADGATE_SEEDED_BUG=NAME python -m pytest tests/unit -p tests.support.world.storm.bugs.planted
"""

from __future__ import annotations

import os
from contextlib import ExitStack

from tests.support.world.storm.bugs import BUGS

NAME = "HEADGATE_SEEDED_BUG"
_planted = ExitStack()


def pytest_configure() -> None:
    """Plant the bug for the whole session, in this process."""
    _planted.enter_context(BUGS[os.environ[NAME]].planted())


def pytest_unconfigure() -> None:
    _planted.close()
