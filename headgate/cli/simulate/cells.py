"""The parts that the tables of `headgate simulate` share."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from headgate.simulator.measures.percentiles import Percentiles

LEFT = ("policy", "tenant", "tier", "planner", "class")
"""The columns of text. All others are numbers, and are aligned right."""


def new_table(*headings: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in LEFT else "right")
    return table


def seconds(values: Percentiles | None) -> tuple[str, str]:
    """Return the cells of the median and the 99th percentile."""
    return ("–", "–") if values is None else (f"{values.p50:.2f} s", f"{values.p99:.2f} s")
