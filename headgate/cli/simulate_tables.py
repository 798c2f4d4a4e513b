"""The tables of `headgate simulate`: of policies, of planners and of a fit."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from headgate.simulator.measures.collector import Percentiles
from headgate.simulator.run import Run

_WIDTH = 120
"""The width of the output if it is not a terminal."""
_LEFT = ("policy", "tenant", "tier", "planner", "class", "model")
"""The columns of text. All others are numbers, and are aligned right."""


def open_console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH)


def new_table(*headings: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in _LEFT else "right")
    return table


def print_outside_fit(runs: Iterable[Run]) -> None:
    """Print once to stderr where runs left the range that their profiles were fitted to."""
    for note in dict.fromkeys(note for run in runs for note in run.outside_fit):
        sys.stderr.write(f"note: {note}\n")


def mean_with_spread(values: Sequence[float], digits: int) -> str:
    """Return the mean, and the standard deviation if there is one."""
    mean = f"{fmean(values):,.{digits}f}"
    sd = stdev(values) if len(values) > 1 else 0.0
    return f"{mean} ± {sd:,.{max(digits, 1)}f}" if sd else mean


def seconds(values: Percentiles | None) -> tuple[str, str]:
    """Return the cells of the median and the 99th percentile."""
    return ("–", "–") if values is None else (f"{values.p50:.2f} s", f"{values.p99:.2f} s")
