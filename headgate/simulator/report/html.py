"""The frame of a report's page, and its tables. A page is one file, and the same runs give the same bytes."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from io import StringIO
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a file so that no other process sees a part of it. Raises OSError."""
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def document(workload: str, body: str) -> str:
    """Return the page. `body`: its header and sections."""
    style = files("headgate.simulator.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{escape(workload)} · headgate simulate</title>\n"
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>\n{style}</style>\n</head>\n'
        f"<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, text: int = 1) -> str:
    """Return a table of HTML cells. `text`: the number of columns of text, from the left; the others are numbers."""
    kinds = ["" if place < text else ' class="number"' for place in range(len(headings))]
    head = "".join(f"<th{kind}>{escape(heading)}</th>" for heading, kind in zip(headings, kinds, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{cell}</td>' for cell, kind in zip(row, kinds, strict=True))}</tr>\n" for row in rows
    )
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'


def data(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a section with the page's figures as CSV, to copy."""
    return f"<section>{as_csv('The data as CSV', headings, rows)}</section>\n"


def as_csv(summary: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows as CSV, folded away under `summary`. None is an empty cell."""
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows(rows)
    return f"<details><summary>{escape(summary)}</summary><pre>{escape(file.getvalue())}</pre></details>"
