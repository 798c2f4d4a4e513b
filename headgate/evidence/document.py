"""The evidence document: what an experiment returns, the registry of experiments, and docs/evidence.md made of them.

To add an experiment, write a function from Setting to Section in a module of its own, decorate it with @experiment, and
add the module to evidence/registry.py. A section has text, tables, checks and plots. It is deterministic: it reads no
clock and reports no figure that depends on the machine.

Sections become Markdown. A reader of the file and its plots sees the old file or the new one, never a part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from headgate.simulator.report.drawing import Plot, svg

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


_MARKS = {True: "✔", False: "✘", None: "–"}
_PLOTS_FOLDER = "evidence"
_INTRODUCTION = """\
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


def render_document(sections: Mapping[str, Section]) -> str:
    """Return the whole document; `sections` by the names of their experiments, in order."""
    parts = [_INTRODUCTION, _contents(sections)]
    parts += [_render_section(name, found) for name, found in sections.items()]
    return "\n".join(parts)


def _contents(sections: Mapping[str, Section]) -> str:
    rows = [_contents_cells(name, found) for name, found in sections.items()]
    return render_table(Table("", ("experiment", "what", "source", "✔", "✘", "–"), rows))


def _contents_row(name: str, found: Section) -> str:
    """Return the section's line in the list of experiments."""
    return _line([_cell(value) for value in _contents_cells(name, found)])


def _contents_cells(name: str, found: Section) -> tuple[Cell, ...]:
    held = Counter(check.held for check in found.checks)
    counts = ("skipped", "", "") if found.skipped is not None else (held[True], held[False], held[None])
    return (_Markdown(f"[{name}](#{name})"), found.title, found.source, *counts)


def _render_section(name: str, found: Section) -> str:
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
        yield f"![{text(plot.title)}]({_PLOTS_FOLDER}/{plot.name}.svg)\n"


def _checks(checks: Sequence[Check]) -> str:
    rows = [(_MARKS[check.held], check.claim, check.found) for check in checks]
    return render_table(Table("", ("", "claim", "found"), rows))


def render_table(of: Table) -> str:
    """Return a table with its columns of numbers aligned right. Raises ValueError for a row of the wrong width."""
    rows = [[_cell(value) for value in row] for row in of.rows]
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


def _cell(value: Cell) -> str:
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


DOCUMENT = "evidence.md"


def write(folder: Path, sections: Mapping[str, Section]) -> list[Path]:
    """Write the document and its plots, and delete plots that no experiment draws any more.

    Returns the written files, the document first. Raises OSError, and ValueError if two plots have one name.
    """
    drawn = folder / _PLOTS_FOLDER
    drawn.mkdir(parents=True, exist_ok=True)
    files = {folder / DOCUMENT: render_document(sections)}
    for section in sections.values():
        for plot in section.plots:
            path = _plot_path(folder, plot)
            if path in files:
                raise ValueError(f"there are two plots of the name {plot.name!r}")
            files[path] = svg(plot)
    for path, text in files.items():
        _replace(path, text)
    for stale in set(drawn.glob("*.svg")) - files.keys():
        stale.unlink()
    return list(files)


def differing(folder: Path, sections: Mapping[str, Section]) -> list[str]:
    """Return the names of the experiments that the document in `folder` shows otherwise, or not at all.

    Skipped experiments are not compared. Raises OSError if there is no document.
    """
    shown = (folder / DOCUMENT).read_text(encoding="utf-8")
    found = {name: section for name, section in sections.items() if section.skipped is None}
    return [name for name, section in found.items() if not _shows(folder, shown, name, section)]


def _shows(folder: Path, shown: str, name: str, section: Section) -> bool:
    """Return whether the document has the section's text as a whole, and the folder all of its plots."""
    texts = (_render_section(name, section), _contents_row(name, section))
    if not all(f"\n{text}" in shown for text in texts):
        return False
    paths = [(_plot_path(folder, plot), plot) for plot in section.plots]
    return all(path.is_file() and path.read_text(encoding="utf-8") == svg(plot) for path, plot in paths)


def _plot_path(folder: Path, plot: Plot) -> Path:
    return folder / _PLOTS_FOLDER / f"{plot.name}.svg"


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
