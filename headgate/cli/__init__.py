"""The command line. A command's module is imported when it is called, so `headgate --help` loads no torch and no boto3.

Exit codes: 0 done; 1 the verdict of the run failed; 2 bad input, with one line on standard error and no traceback; 3
the verdict is inconclusive; 130 interrupted; 141 the reader of standard output has closed it (terminal/output.py).
"""

from __future__ import annotations

import os
import sys
from importlib import import_module, metadata
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from headgate.machine.proxies import bypass_proxies

_COMMANDS = {
    "serve": ("headgate.cli.serve", "Serve OpenAI's API from this machine with fair shares, without AWS."),
    "demo": ("headgate.cli.demo", "Show the effect: play one workload without headgate's policies and with them."),
    "simulate": ("headgate.cli.simulate", "Simulate a policy on a workload, in virtual time."),
    "reproduce": ("headgate.cli.reproduce", "Run the papers' experiments again and check their claims."),
    "local": ("headgate.cli.local", "Run the whole stack on this machine."),
    "invoke": ("headgate.cli.invoke", "Call the service once, over HTTP or lambda.invoke."),
    "tenants": ("headgate.cli.tenants.commands", "Create, list, show, set and delete tenants; rotate their keys."),
    "doctor": ("headgate.cli.doctor", "Check an AWS account before a deployment, and a service after it."),
    "table": ("headgate.cli.table", "Create the table of a service outside AWS."),
    "top": ("headgate.cli.gate", "Watch shares, waiting, latencies, workers and the leader."),
    "plan": ("headgate.cli.gate", "Show queues, models, swaps and lateness of a fleet with several models."),
    "formats": ("headgate.cli.gate", "Show or change the log's format, while two versions serve together."),
    "trace": (
        "headgate.cli.trace",
        "Write the service's calls, or spans, as a trace for the simulator.",
    ),
    "usage": ("headgate.cli.usage", "Print tokens and service per tenant, application and hour."),
}

_TAKE_ENGINE_ARGUMENTS = frozenset({"serve", "local"})
"""Commands with arguments for the engine's own server after `--`. They get them as the context's `obj`."""


class _Commands(TyperGroup):
    """The commands by name. A command's module is loaded when it is called, and not to list the commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words before `--`. (Click takes the word after `--` for the name of a subcommand.)"""
        ctx.obj = ()
        if "--" in args and _TAKE_ENGINE_ARGUMENTS.intersection(args[:1]):
            place = args.index("--")
            args, ctx.obj = args[:place], tuple(args[place + 1 :])
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _load(cmd_name) if cmd_name in _COMMANDS else None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        table = Table(show_header=False, box=None, padding=(0, 2))
        for name, (_, summary) in _COMMANDS.items():
            table.add_row(name, summary)
        console = Console()
        console.print("Usage: headgate [--version] [--help] COMMAND [OPTIONS]\n", markup=False)
        console.print("Fair shares of a shared GPU fleet for every tenant of an LLM service.\n")
        console.print(table)


def _load(name: str) -> Any:
    """Load a command: the module's `app` if it has subcommands, otherwise the function with the command's name."""
    module = import_module(_COMMANDS[name][0])
    own = getattr(module, "app", None)
    if own is None:
        own = typer.Typer(add_completion=False)
        own.command(name)(getattr(module, name))
    command = typer.main.get_command(own)
    command.name = name
    return command


app = typer.Typer(cls=_Commands, add_completion=False, no_args_is_help=True)


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    if version:
        try:
            Console().print(metadata.version("headgate"), highlight=False)
        except metadata.PackageNotFoundError:
            Console().print("unknown: headgate is not installed, this is the source tree")
        raise typer.Exit(0)
    _pass_on_region()


def _pass_on_region() -> None:
    """Let boto3 know AWS_REGION, as AWS's command line reads it. By itself it reads AWS_DEFAULT_REGION only."""
    if region := os.environ.get("AWS_REGION"):
        os.environ["AWS_DEFAULT_REGION"] = region


def main() -> None:
    from headgate.cli.terminal.output import exit_code, guard_output

    guard_output()
    bypass_proxies(os.environ)
    sys.exit(exit_code(lambda: typer.main.get_command(app)(standalone_mode=False, prog_name="headgate")))
