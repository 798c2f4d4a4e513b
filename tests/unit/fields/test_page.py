"""The documentation page is the one that the table generates."""

from __future__ import annotations

from pathlib import Path

from dispatcher.fields.page import PARTS, page
from dispatcher.fields.tables import ALL

PAGE = Path(__file__).parents[3] / "docs" / "fields.md"


def test_the_committed_page_is_generated() -> None:
    assert PAGE.read_text() == page(), "run: python -m dispatcher.fields.page > docs/fields.md"


def test_the_page_has_every_field() -> None:
    text = page()
    for table in (*ALL, *PARTS):
        assert f"# {table.title}\n" in text
        for name in table.fields:
            assert f"| `{name}`" in text
