"""What an experiment hands over: text, tables, checks and plots; and the registry of experiments.

To add one: a function from Setting to Section in a module of its own, decorated with @experiment("name"), and an import
in evidence/registry.py. Everything in a section is deterministic: no clock, no figures of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from headgate.simulator.report.drawing import Plot

J = TypeVar("J")
R = TypeVar("R")
Cell = str | float | int | None
"""A number is written with four significant digits, None as a dash."""


class Map(Protocol):
    """`map(function, jobs)` over the cores there are, results in the order of the jobs; both must be picklable."""

    def __call__(self, function: Callable[[J], R], jobs: Iterable[J], /) -> list[R]: ...


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]


@dataclass(frozen=True, slots=True)
class Check:
    """A claim, and whether it holds here. `held` None: reported without a verdict, `said` tells why."""

    claim: str
    held: bool | None
    said: str
    """What was found, with figures."""


@dataclass(frozen=True, slots=True)
class Section:
    """`text`: paragraphs of Markdown, before the tables. `skipped`: why it was not run, else None."""

    title: str
    source: str
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    checks: Sequence[Check] = ()
    plots: Sequence[Plot] = ()
    skipped: str | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """`traces`: the folder that holds vtc/ and azure/, None where there is none. `seeds`: how many runs of each
    experiment whose steps are jittered; an experiment states where it takes fewer."""

    map: Map
    traces: Path | None = None
    seeds: int = 20
    jitter: float = 0.05


Experiment = Callable[[Setting], Section]
EXPERIMENTS: dict[str, Experiment] = {}
"""By name, in the order of docs/evidence.md; complete once registry.py is imported."""


def experiment(name: str) -> Callable[[Experiment], Experiment]:
    """Enter an experiment under `name`. Raises ValueError for a name that is taken."""

    def enter(run: Experiment) -> Experiment:
        if name in EXPERIMENTS:
            raise ValueError(f"the experiment {name!r} is there already")
        EXPERIMENTS[name] = run
        return run

    return enter
