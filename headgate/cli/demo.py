"""`headgate demo`: one tenant floods, the other is served. Exit code 1 where it is not."""

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
    quiet: Annotated[Path | None, typer.Option(help="Trace of the quiet tenant (ours or Azure's CSV).")] = None,
    flood: Annotated[Path | None, typer.Option(help="Trace of the flooding tenant (ours or Azure's CSV).")] = None,
    seconds: Annotated[float, typer.Option(help="How long requests arrive.", min=5, max=60)] = 15.0,
    seed: Annotated[int, typer.Option(help="Seed of the built-in profile's arrivals.")] = 1,
    engine: Annotated[str, typer.Option(help="transformers, or modelled (needs no torch).")] = "transformers",
    model: Annotated[str | None, typer.Option(help="Folder of a Hugging Face model; else a small built one.")] = None,
    slots: Annotated[int, typer.Option(help="Slots of the worker.")] = 8,
    start_timeout: Annotated[
        float, typer.Option(help="Seconds that each process may take to start.")
    ] = START_TIMEOUT_S,
    home: Annotated[Path | None, typer.Option(help="Where logs and the tiny model are kept.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Play one workload twice, without headgate's policies and with them, and compare."""
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
    """None where a signal ended it: everything is stopped first."""
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
