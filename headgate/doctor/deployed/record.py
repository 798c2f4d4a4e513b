"""The record of a run on AWS. docs/operations.md calls its list "not yet run" until there is one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from headgate.doctor.finding import Finding


def as_markdown(stack: str, found: Sequence[Finding], now: float) -> str:
    """Return the findings as a page. `now`: Unix seconds."""
    day = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M UTC")
    rows = [f"| {each.check} | {each.result.value} | {_cell(each.seen)} |" for each in found]
    head = [f"# The stack {stack} on {day}", "", "`headgate doctor deployed` saw:", "", "| what | result | seen |"]
    return "\n".join([*head, "| --- | --- | --- |", *rows, ""])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
