"""The measures of the house that only fall: names and docstrings that are read twice, and circles of modules.

A count above its ceiling is to be mended where it was added. A count below it lowers the ceiling, here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support.house import House

CEILINGS: dict[Callable[[House], list[str]], int] = {
    House.twin_classes: 5,
    House.participles: 174,
    House.fragments: 0,
    House.circles: 0,
}

PLANTED = """
from dispatcher.second import look

class Answer: ...

def answer_kept() -> None:
    \"\"\"Those that are of a call.\"\"\"

def kept_answers() -> None:
    \"\"\"Of each pool, in order.\"\"\"
"""
SECOND = """
from dispatcher import first

class Answer: ...

def look() -> None:
    \"\"\"Return the first.\"\"\"
"""


@cache
def house() -> House:
    return House()


@pytest.mark.parametrize("measure", CEILINGS, ids=lambda measure: measure.__name__)
def test_a_count_only_falls(measure: Callable[[House], list[str]]) -> None:
    found, ceiling = measure(house()), CEILINGS[measure]
    listed = "python -m tests.support.house --list " + measure.__name__.removesuffix("_classes")
    assert len(found) <= ceiling, f"{len(found)} {measure.__name__}, {ceiling} before: {listed}"
    assert len(found) == ceiling, f"fewer {measure.__name__} than {ceiling}: lower its ceiling to {len(found)}"


def test_each_measure_finds_what_is_planted(tmp_path: Path) -> None:
    package = tmp_path / "dispatcher"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "first.py").write_text(PLANTED)
    (package / "second.py").write_text(SECOND)
    planted = House(tmp_path)
    assert planted.twin_classes() == ["Answer: dispatcher.first, dispatcher.second"]
    assert [each.rpartition(" ")[2] for each in planted.participles()] == ["answer_kept"]
    assert [each.partition(" ")[2] for each in planted.fragments()] == [
        "Those that are of a call.",
        "Of each pool, in order.",
    ]
    assert planted.circles() == ["dispatcher.first dispatcher.second"]
    assert planted.folders() == {"dispatcher": 2}
    assert len(planted.public_names()) == 5
