"""The page of the fields has every field, and what it says about the table is true."""

from __future__ import annotations

from pathlib import Path

from dispatcher.fields.kinds import DROPPED_MAX, Kind
from dispatcher.fields.page import PARTS, write_tables
from dispatcher.fields.tables import ALL
from docs.build import FIELDS_MARK, read_page

PAGE = Path(__file__).parents[3] / "docs" / "fields.md"


def test_the_page_explains_every_class_of_fields() -> None:
    text = " ".join(PAGE.read_text("utf-8").split())
    assert f"at most {DROPPED_MAX} in one request" in text
    assert [kind for kind in Kind if f"| {kind} |" not in text] == []


def test_the_tables_have_every_field() -> None:
    text = write_tables()
    for table in (*ALL, *PARTS):
        assert f"# {table.title}\n" in text
        for name in table.fields:
            assert f"| `{name}`" in text


def test_the_site_has_the_tables_in_the_place_of_the_mark() -> None:
    committed, built = PAGE.read_text("utf-8"), read_page(PAGE)
    assert committed.count(FIELDS_MARK) == 1
    assert built == committed.replace(FIELDS_MARK, write_tables())
