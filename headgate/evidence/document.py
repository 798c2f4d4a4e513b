"""The evidence document: what an experiment returns, the registry of experiments, and a section as Markdown.

To add an experiment, write a function from Setting to Section in a module of its own, decorate it with @experiment, and
add the module to evidence/registry.py. A section has text, tables, checks and plots. It is deterministic: it reads no
clock and reports no figure that depends on the machine.

pages.py makes docs/evidence.md of the sections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from headgate.simulator.report.drawing import Plot

J = TypeVar("J")
R = TypeVar("R")
Cell = str | float | int | None
"""The document shows a float with four significant digits and None as a dash."""


class Map(Protocol):
    """`map(function, jobs)` over parallel processes: results in the order of the jobs. Both must be picklable."""

    def __call__(self, function: Callable[[J], R], jobs: Iterable[J], /) -> list[R]: ...


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]


@dataclass(frozen=True, slots=True)
class Check:
    """A claim, and whether it holds here. `held` None: reported without a verdict, for the reason in `found`."""

    claim: str
    held: bool | None
    found: str
    """The figures behind the verdict."""
    reason: str = ""
    """Why the claim is known not to hold here. A ✘ with a reason is shown with it, and `--check` accepts it."""
    ours: float | None = None
    theirs: float | None = None
    """What is compared, if the claim is that two figures are near: ours, and the measured or printed one."""
    tolerance: float | None = None
    """The greatest distance of the two, relative to `theirs`."""

    @property
    def is_unexplained(self) -> bool:
        """Return whether the claim fails, and no reason for it is known."""
        return self.held is False and not self.reason


@dataclass(frozen=True, slots=True)
class Section:
    """One experiment in the document. @experiment fills in `title` and `source`.

    `text`: paragraphs of Markdown before the tables. `skipped`: why the experiment did not run; None if it ran.
    """

    title: str = ""
    source: str = ""
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    checks: Sequence[Check] = ()
    plots: Sequence[Plot] = ()
    skipped: str | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """`traces`: the folder with vtc/ and azure/, None without one. `seeds`: runs of each experiment with jittered
    steps; experiments with fewer runs state their number. `jitter`: standard deviation of a step's time, relative."""

    map: Map
    traces: Path | None = None
    seeds: int = 20
    jitter: float = 0.05

    @property
    def traces_folder(self) -> Path:
        """The folder of the traces. Raises ValueError without one: for experiments that need traces."""
        if self.traces is None:
            raise ValueError("there are no traces, and @experiment does not have needs_traces")
        return self.traces


_Experiment = Callable[[Setting], Section]
EXPERIMENTS: dict[str, _Experiment] = {}
"""The experiments by name, in the order of docs/evidence.md. Importing registry.py enters them."""


def experiment(
    name: str, title: str, source: str, *, needs_traces: bool = False
) -> Callable[[_Experiment], _Experiment]:
    """Enter an experiment under `name`. Raises ValueError if the name is taken.

    `needs_traces`: without the traces of the VTC artifact the experiment is skipped.
    """

    def enter(run: _Experiment) -> _Experiment:
        def titled(setting: Setting) -> Section:
            if needs_traces and setting.traces is None:
                return Section(title, source, skipped="the traces of the VTC artifact are missing (--traces FOLDER)")
            return replace(run(setting), title=title, source=source)

        if name in EXPERIMENTS:
            raise ValueError(f"there are two experiments of the name {name!r}")
        EXPERIMENTS[name] = titled
        return titled

    return enter


MARKS = {True: "✔", False: "✘", None: "–"}
PLOTS_FOLDER = "evidence"


class Markdown(str):
    """A cell that is Markdown already, so that cell() does not escape it."""


def render_section(name: str, found: Section) -> str:
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
        yield render_table(one)
    if found.checks:
        yield _checks(found.checks)
    for plot in found.plots:
        yield f"![{text(plot.title)}]({PLOTS_FOLDER}/{plot.name}.svg)\n"


def _checks(checks: Sequence[Check]) -> str:
    rows = [(MARKS[check.held], check.claim, _verdict_text(check)) for check in checks]
    return render_table(Table("", ("", "claim", "found"), rows))


def _verdict_text(check: Check) -> str:
    return f"{check.found}. Why: {check.reason}" if check.held is False and check.reason else check.found


def render_table(of: Table) -> str:
    """Return a table with its columns of numbers aligned right. Raises ValueError for a row of the wrong width."""
    rows = [[cell(value) for value in row] for row in of.rows]
    for row in rows:
        if len(row) != len(of.columns):
            raise ValueError(f"table {of.title!r}: a row of {len(row)} cells under {len(of.columns)} columns")
    rules = ["---:" if _is_numeric([row[at] for row in of.rows]) else "---" for at in range(len(of.columns))]
    lines = [[text(column) for column in of.columns], rules, *rows]
    return "".join(line(cells) for cells in lines)


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _is_numeric(column: Sequence[Cell]) -> bool:
    return any(isinstance(value, int | float) for value in column)


def cell(value: Cell) -> str:
    """Return a cell's Markdown: floats with four significant digits, None as a dash, text escaped."""
    if value is None:
        return "–"
    if isinstance(value, Markdown):
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
