"""Shows the addresses and keys of started processes: as a table for people, or as one line of JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table


def print_json_line(addresses: BaseModel) -> None:
    sys.stdout.write(addresses.model_dump_json() + "\n")
    sys.stdout.flush()


def print_address_table(title: str, rows: Iterable[tuple[str, str]], next_steps: str) -> None:
    """Print the rows (name, value) as a table, and below it the commands to call next."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")  # a key is shown once: whole, however narrow the terminal
    for name, value in rows:
        table.add_row(name, value)
    console = Console()
    console.print(table)
    console.print(next_steps, soft_wrap=True, markup=False, highlight=False)
