"""A command in this process: what `headgate` does with its arguments, its output kept by pytest."""

from __future__ import annotations

import typer

from headgate.cli import app
from headgate.cli.terminal.output import exit_code


def headgate(*arguments: str) -> int:
    """The exit code."""
    command = typer.main.get_command(app)
    return exit_code(lambda: command(list(arguments), standalone_mode=False, prog_name="headgate"))
