"""Builds HTML as a tree of the standard library's elements, which escape every text and attribute when written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element, tostring

Child = Element | str


def element(tag: str, /, *children: Child, **attributes: str) -> Element:
    """Return an element. An attribute's name ends with _ if it is a word of Python, and has _ for each hyphen."""
    made = Element(tag, {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()})
    last: Element | None = None
    for child in children:
        if isinstance(child, Element):
            made.append(child)
            last = child
        elif last is None:
            made.text = (made.text or "") + child
        else:
            last.tail = (last.tail or "") + child
    return made


def table(
    caption: str, columns: Sequence[str], rows: Iterable[Sequence[Child]], *, empty: str, text: int = 1
) -> Element:
    """Return a table that scrolls sideways if the screen is narrow, or the sentence `empty` if it has no row.

    The first cell of a row is its heading. The first `text` columns are text, the others numbers.
    """
    lines = [_row(cells, text) for cells in rows]
    if not lines:
        return element("p", empty)
    heads = [element("th", each, scope="col", class_=_kind(number, text)) for number, each in enumerate(columns)]
    made = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *heads)),
        element("tbody", *lines),
    )
    return element("div", made, class_="scroll", role="region", aria_label=caption, tabindex="0")


def _row(cells: Sequence[Child], text: int) -> Element:
    first, *others = cells
    cells_after = [element("td", each, class_=_kind(number, text)) for number, each in enumerate(others, 1)]
    return element("tr", element("th", first, scope="row", class_="text"), *cells_after)


def _kind(column: int, text: int) -> str:
    return "text" if column < text else "number"


def written(root: Element) -> bytes:
    """Return the document. Characters beyond ASCII are written as references, so no text can fail to be encoded."""
    html: bytes = tostring(root, encoding="us-ascii", method="html")
    return b"<!doctype html>\n" + html
