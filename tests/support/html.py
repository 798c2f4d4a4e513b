"""Reads a page as a browser would: its tables, its elements, and its text without scripts and styles."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "input", "br"}


class Page(HTMLParser):
    """`elements`: (tag, attributes) in the order of the page. `tables`: by caption, the texts of the cells by row."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.text = ""
        self._open: list[str] = []
        self._caption = ""
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attributes}))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "caption":
            self._caption = ""
        elif tag == "tr":
            self.tables.setdefault(self._caption, []).append([])
        elif tag in ("td", "th"):
            self.tables[self._caption][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self._open or "title" in self._open:
            return
        self.text += data
        if "caption" in self._open:
            self._caption += data
        elif "td" in self._open or "th" in self._open:
            self.tables[self._caption][-1][-1] += data

    def tags(self, name: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.elements if tag == name]

    def rows(self, caption: str) -> dict[str, list[str]]:
        """Return the rows of the table whose caption begins so, by their first cell."""
        (table,) = [rows for name, rows in self.tables.items() if name.startswith(caption)]
        return {row[0]: row[1:] for row in table[1:]}
