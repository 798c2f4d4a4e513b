"""Shows the addresses and keys of started processes: as a table for people, or as one line of JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from pydantic import BaseModel


def print_json_line(addresses: BaseModel) -> None:
    sys.stdout.write(json.dumps(addresses.model_dump(mode="json")) + "\n")  # in ASCII, whatever a name has
    sys.stdout.flush()


def print_address_table(title: str, rows: Sequence[tuple[str, str]], next_steps: str) -> None:
    """Print a line for each row (name, value), and below them the commands to call next.

    No line is broken and none has a border, so that a key can be copied from a terminal of any width.
    """
    width = max(len(name) for name, _ in rows)
    lines = [title, *(f"  {name:<{width}}  {value}" for name, value in rows), next_steps]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
