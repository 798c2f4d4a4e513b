"""Sections as Markdown: what docs/evidence.md says, without the plots' bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from headgate.evidence.document.sections import Cell, Check, Section, Table

MARKS = {True: "✔", False: "✘", None: "–"}
PLOTS_FOLDER = "evidence"
INTRODUCTION = """\
# Evidence

What the papers claim, what their authors measured, and what headgate's own policies do in the simulator. Written by
`headgate reproduce`, which runs every experiment below again; `headgate reproduce --check` fails where a claim marked ✔
here no longer holds. The same command gives the same bytes: nothing below depends on the machine.

✔ the claim holds within its stated tolerance · ✘ it does not · – reported without a verdict, and why
"""


def document(sections: Mapping[str, Section]) -> str:
    """The whole document; `sections` by the experiments' names, in its order."""
    parts = [INTRODUCTION, _contents(sections)]
    parts += [section(name, of_name) for name, of_name in sections.items()]
    return "\n".join(parts)


def _contents(sections: Mapping[str, Section]) -> str:
    rows = [_contents_row(name, of_name) for name, of_name in sections.items()]
    return table(Table("", ("experiment", "what", "source", "✔", "✘", "–"), rows))


def _contents_row(name: str, of_name: Section) -> tuple[Cell, ...]:
    held = Counter(check.held for check in of_name.checks)
    counts = ("skipped", "", "") if of_name.skipped is not None else (held[True], held[False], held[None])
    return (_Raw(f"[{name}](#{name})"), of_name.title, of_name.source, *counts)


class _Raw(str):
    """A cell that is Markdown already."""


def section(name: str, of_name: Section) -> str:
    """Headed by the experiment's name, so that `--only` and links know it."""
    return "\n".join(_lines(name, of_name))


def _lines(name: str, of_name: Section) -> Iterator[str]:
    yield f'<a id="{name}"></a>\n'
    yield f"## {text(of_name.title)}\n"
    yield f"`{name}` · {text(of_name.source)}\n"
    if of_name.skipped is not None:
        yield f"Skipped: {text(of_name.skipped)}\n"
        return
    yield from (f"{paragraph}\n" for paragraph in of_name.text)
    for one in of_name.tables:
        yield f"**{text(one.title)}**\n"
        yield table(one)
    if of_name.checks:
        yield _checks(of_name.checks)
    for plot in of_name.plots:
        yield f"![{text(plot.title)}]({PLOTS_FOLDER}/{plot.name}.svg)\n"


def _checks(checks: Sequence[Check]) -> str:
    rows = [(MARKS[check.held], check.claim, check.said) for check in checks]
    return table(Table("", ("", "claim", "found"), rows))


def table(of: Table) -> str:
    """Columns of numbers to the right. Raises ValueError for a row of another width than the heading's."""
    rows = [[cell(value) for value in row] for row in of.rows]
    for row in rows:
        if len(row) != len(of.columns):
            raise ValueError(f"table {of.title!r}: a row of {len(row)} cells under {len(of.columns)} columns")
    rules = ["---:" if _is_numeric([row[at] for row in of.rows]) else "---" for at in range(len(of.columns))]
    lines = [[text(column) for column in of.columns], rules, *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _is_numeric(column: Sequence[Cell]) -> bool:
    return any(isinstance(value, int | float) for value in column)


def cell(value: Cell) -> str:
    """Floats with four significant digits, None as a dash."""
    if value is None:
        return "–"
    if isinstance(value, _Raw):
        return str(value)
    if isinstance(value, float):
        return number(value)
    return f"{value:,}" if isinstance(value, int) else text(value)


def number(value: float) -> str:
    """Four significant digits, in full: 12,340 and 0.1234 and not 1.234e+04."""
    if value == 0 or not abs(value) < float("inf"):
        return f"{value:g}"
    digits = 3 - int(f"{value:.3e}".partition("e")[2])
    rounded = round(value, digits)
    return f"{rounded:,.{max(digits, 0)}f}"


def text(plain: str) -> str:
    """Nothing in it is read as Markdown or HTML."""
    escaped = "".join(f"\\{char}" if char in "\\`*_[]|~" else char for char in plain)
    return " ".join(escaped.replace("<", "&lt;").split())
