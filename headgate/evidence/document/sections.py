"""What an experiment returns (text, tables, checks and plots), and the registry of experiments.

To add an experiment, write a function from Setting to Section in a module of its own, decorate it with @experiment, and
add the module to evidence/registry.py. A section is deterministic: it reads no clock and reports no figure that depends
on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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


Experiment = Callable[[Setting], Section]
EXPERIMENTS: dict[str, Experiment] = {}
"""The experiments by name, in the order of docs/evidence.md. Importing registry.py enters them."""


def experiment(name: str, title: str, source: str, *, needs_traces: bool = False) -> Callable[[Experiment], Experiment]:
    """Enter an experiment under `name`. Raises ValueError if the name is taken.

    `needs_traces`: without the traces of the VTC artifact the experiment is skipped.
    """

    def enter(run: Experiment) -> Experiment:
        def titled(setting: Setting) -> Section:
            if needs_traces and setting.traces is None:
                return Section(title, source, skipped="the traces of the VTC artifact are missing (--traces FOLDER)")
            return replace(run(setting), title=title, source=source)

        if name in EXPERIMENTS:
            raise ValueError(f"there are two experiments of the name {name!r}")
        EXPERIMENTS[name] = titled
        return titled

    return enter
