"""Every name in tests/support/duration.py is that of a test, so that none becomes quick by being renamed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.duration import LONG, SLOW

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", [*LONG, *SLOW])
def test_the_name_is_that_of_a_test(name: str) -> None:
    path, _, test = name.partition("::")
    files = [file for file in ROOT.glob(f"{path}*") if file.suffix == ".py"]
    assert files
    assert all(re.search(rf"^\s*(async )?(def|class) {test}", file.read_text(), re.MULTILINE) for file in files)


def test_no_name_is_in_both_lists_and_both_are_sorted() -> None:
    assert not set(LONG) & set(SLOW)
    assert [*LONG, *SLOW] == [*sorted(LONG), *sorted(SLOW)]
