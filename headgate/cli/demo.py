"""`headgate demo` plays one workload twice and prints a verdict; the exit code is 1 if the verdict failed."""

from __future__ import annotations

import asyncio
import contextlib
import json as json_module
import signal
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headgate.demo.report import as_json, print_report
from headgate.demo.run import DemoOptions, Sources, run_demo
from headgate.demo.verdict import Verdict
from headgate.local.options import START_TIMEOUT_S, stack_options


def demo(
    quiet: Annotated[
        Path | None,
        typer.Option(help="CSV of the quiet tenant's requests, headgate's or Azure's format; default: generated."),
    ] = None,
    flood: Annotated[Path | None, typer.Option(help="CSV of the flooding tenant; default: generated.")] = None,
    seconds: Annotated[float, typer.Option(help="Seconds in which requests arrive.", min=5, max=60)] = 15.0,
    seed: Annotated[int, typer.Option(help="Seed of the generated requests.")] = 1,
    engine: Annotated[
        str, typer.Option(help="Engine of the worker: transformers, or modelled, which needs no torch.")
    ] = "transformers",
    model: Annotated[
        str | None, typer.Option(help="Folder of a Hugging Face model; default: a small one, built here.")
    ] = None,
    slots: Annotated[int, typer.Option(help="Requests that the worker takes at a time.")] = 8,
    start_timeout: Annotated[
        float, typer.Option(help="Seconds that each process may take to start.")
    ] = START_TIMEOUT_S,
    home: Annotated[
        Path | None, typer.Option(help="Folder for logs and the built model; default: a new temporary folder.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Play one workload twice, without headgate's policies and with them, and compare the two runs."""
    options = DemoOptions(
        stack=stack_options(
            engine=engine,
            model=model,
            slots=slots,
            port=0,
            start_timeout_s=start_timeout,
            home=home or Path(tempfile.mkdtemp(prefix="headgate-")),
        ),
        sources=Sources(quiet=quiet, flood=flood, seed=seed),
        seconds=seconds,
    )
    console = Console(stderr=json)
    verdict = asyncio.run(_until_stopped(options, console, json))
    if verdict is None:
        raise typer.Exit(130)
    raise typer.Exit(0 if verdict.passed else 1)


async def _until_stopped(options: DemoOptions, console: Console, json: bool) -> Verdict | None:
    """Run the demo and print its result. Return None if a signal stopped it; every process has ended then."""
    playing = asyncio.ensure_future(run_demo(options, console))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, playing.cancel)
    try:
        runs, verdict = await playing
    except asyncio.CancelledError:
        console.print("stopped")
        return None
    if json:
        sys.stdout.write(json_module.dumps(as_json(runs, verdict)) + "\n")
    else:
        print_report(console, runs, verdict)
    return verdict
