"""What is written and answered is byte for byte what the golden files say, and old bytes are still read."""

from __future__ import annotations

import pytest

from tests.golden import FILES, written
from tests.golden.gate import read_log, read_snapshot
from tests.golden.makers import MAKERS
from tests.golden.stores import read_items, read_rows


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_made_is_the_golden_file(name: str) -> None:
    assert MAKERS[name]() == written(name), f"python -m tests.golden {name} writes it anew, if this is meant to change"


def test_each_file_has_its_maker() -> None:
    assert {path.name for path in FILES.iterdir()} == set(MAKERS)


@pytest.mark.parametrize("of_format", ["5", "5-to-6", "6"])
def test_old_logs_and_snapshots_are_read(of_format: str) -> None:
    """A log that is folded and a snapshot that is loaded are the same state as when they were written."""
    log, snapshot = f"log-{of_format}.jsonl", f"snapshot-{of_format}.jsonl"
    assert read_log(written(log)) == written(snapshot)
    assert read_snapshot(written(snapshot)) == written(snapshot)


def test_old_tables_and_files_are_read_alike() -> None:
    assert read_items(written("items.jsonl")) == written("answers.txt")
    for layout in (4, 5):
        assert read_rows(written(f"rows-{layout}.sql")) == written("answers.txt")
