"""Sections as Markdown: the text of docs/evidence.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from headgate.evidence.document.sections import Cell, Check, Section, Table

MARKS = {True: "✔", False: "✘", None: "–"}
PLOTS_FOLDER = "evidence"
INTRODUCTION = """\
# Evidence

What the papers claim, what their authors measured, and what headgate's own policies do in the simulator. The command
`headgate reproduce` runs every experiment on this page and writes this page. `headgate reproduce --check` fails if a
claim marked ✔ no longer holds. The command always writes the same bytes: nothing on this page depends on the machine.

In the tables, *paper* is the printed figure, *measured* is computed from the authors' logs, and *ours* is the
simulator. 256/256 stands for requests of 256 input and 256 output tokens. Service is counted in units: 1 for an input
token, 2 for an output token, if the section does not give another unit.

✔ the claim holds within its stated tolerance · ✘ it does not hold · – reported without a verdict; the text says why
"""


class _Markdown(str):
    """A cell that is Markdown already, so that cell() does not escape it."""


def document(sections: Mapping[str, Section]) -> str:
    """Return the whole document; `sections` by the names of their experiments, in order."""
    parts = [INTRODUCTION, _contents(sections)]
    parts += [section(name, found) for name, found in sections.items()]
    return "\n".join(parts)


def _contents(sections: Mapping[str, Section]) -> str:
    rows = [_contents_cells(name, found) for name, found in sections.items()]
    return table(Table("", ("experiment", "what", "source", "✔", "✘", "–"), rows))


def contents_row(name: str, found: Section) -> str:
    """Return the section's line in the list of experiments."""
    return _line([cell(value) for value in _contents_cells(name, found)])


def _contents_cells(name: str, found: Section) -> tuple[Cell, ...]:
    held = Counter(check.held for check in found.checks)
    counts = ("skipped", "", "") if found.skipped is not None else (held[True], held[False], held[None])
    return (_Markdown(f"[{name}](#{name})"), found.title, found.source, *counts)


def section(name: str, found: Section) -> str:
    """Return one section; its anchor and first line are the name that `--only` takes."""
    return "\n".join(_blocks(name, found))


def _blocks(name: str, found: Section) -> Iterator[str]:
    yield f'<a id="{name}"></a>\n'
    yield f"## {text(found.title)}\n"
    yield f"`{name}` · {text(found.source)}\n"
    if found.skipped is not None:
        yield f"Skipped: {text(found.skipped)}\n"
        return
    yield from (f"{paragraph}\n" for paragraph in found.text)
    for one in found.tables:
        yield f"**{text(one.title)}**\n"
        yield table(one)
    if found.checks:
        yield _checks(found.checks)
    for plot in found.plots:
        yield f"![{text(plot.title)}]({PLOTS_FOLDER}/{plot.name}.svg)\n"


def _checks(checks: Sequence[Check]) -> str:
    rows = [(MARKS[check.held], check.claim, check.found) for check in checks]
    return table(Table("", ("", "claim", "found"), rows))


def table(of: Table) -> str:
    """Return a table with its columns of numbers aligned right. Raises ValueError for a row of the wrong width."""
    rows = [[cell(value) for value in row] for row in of.rows]
    for row in rows:
        if len(row) != len(of.columns):
            raise ValueError(f"table {of.title!r}: a row of {len(row)} cells under {len(of.columns)} columns")
    rules = ["---:" if _is_numeric([row[at] for row in of.rows]) else "---" for at in range(len(of.columns))]
    lines = [[text(column) for column in of.columns], rules, *rows]
    return "".join(_line(line) for line in lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _is_numeric(column: Sequence[Cell]) -> bool:
    return any(isinstance(value, int | float) for value in column)


def cell(value: Cell) -> str:
    """Return a cell's Markdown: floats with four significant digits, None as a dash, text escaped."""
    if value is None:
        return "–"
    if isinstance(value, _Markdown):
        return str(value)
    if isinstance(value, float):
        return number(value)
    return f"{value:,}" if isinstance(value, int) else text(value)


def number(value: float) -> str:
    """Format with four significant digits and no exponent: 12,340 and 0.1234."""
    if value == 0 or not abs(value) < float("inf"):
        return f"{value:g}"
    digits = 3 - int(f"{value:.3e}".partition("e")[2])
    rounded = round(value, digits)
    return f"{rounded:,.{max(digits, 0)}f}"


def text(plain: str) -> str:
    """Escape plain text, so that nothing in it is Markdown or HTML."""
    escaped = "".join(f"\\{char}" if char in "\\`*_[]|~" else char for char in plain)
    return " ".join(escaped.replace("<", "&lt;").split())
