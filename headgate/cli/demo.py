"""`headgate demo` plays the same requests twice and prints a verdict.

The exit code is 0 if it passed, 1 if it failed, and 3 if it is inconclusive.
"""

from __future__ import annotations

import asyncio
import contextlib
import json as json_module
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headgate.demo.measure import DemoOutcome
from headgate.demo.report import as_json, print_report, say
from headgate.demo.run import DemoOptions, PlayedDemo, run_demo
from headgate.demo.scene import Sources
from headgate.machine.options import START_TIMEOUT_S, stack_options, validated
from headgate.machine.places import home_folder
from headgate.serve.server import ServeOptions
from headgate.workloads.profiles import MODELLED_ENGINE, SMALL_ENGINE, Fit

_EXIT_CODES = {DemoOutcome.PASSED: 0, DemoOutcome.FAILED: 1, DemoOutcome.INCONCLUSIVE: 3}
_MODELLED = "modelled"


@dataclass(frozen=True, slots=True)
class Size:
    """How long the demo takes. `calibration_requests`: of each measurement of the engine, two batches or more."""

    seconds: float
    slots: int
    calibration_requests: int
    fit: Fit


_REAL = Size(15.0, slots=8, calibration_requests=16, fit=SMALL_ENGINE)
_QUICK = Size(1.5, slots=12, calibration_requests=16, fit=MODELLED_ENGINE)
"""The size for the modelled engine. More slots than its batch of 8 keep it full."""


def demo(
    quiet: Annotated[
        Path | None,
        typer.Option(help="CSV of the quiet tenant's requests, headgate's or Azure's format; default: generated."),
    ] = None,
    flood: Annotated[Path | None, typer.Option(help="CSV of the flooding tenant; default: generated.")] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Seconds in which requests arrive; default: 15, with the modelled engine 1.5.", min=1, max=60
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the generated requests.")] = 1,
    engine: Annotated[
        str, typer.Option(help="Engine of the worker: transformers, or modelled, which needs no torch.")
    ] = "transformers",
    aws: Annotated[
        bool | None,
        typer.Option(
            "--aws/--no-aws",
            help="Use the form for AWS, where some requests go through lambda.invoke, or that on one machine; "
            "default: that for AWS, with the modelled engine that on one machine.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Folder of a Hugging Face model; default: a small one, built here.")
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(help="Requests that the worker takes at a time; default: 8, with the modelled engine 12."),
    ] = None,
    start_timeout: Annotated[
        float, typer.Option(help="Seconds that each process may take to start.")
    ] = START_TIMEOUT_S,
    home: Annotated[
        Path | None,
        typer.Option(help="Folder for logs and the built model; default: a temporary one, removed at the end."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Play the same requests twice, without headgate's policies and with them, and compare the two runs."""
    is_modelled = engine == _MODELLED
    size = _QUICK if is_modelled else _REAL
    console = Console(stderr=json)
    with home_folder(home) as folder:
        values = {
            "engine": engine,
            "model": model,
            "slots": size.slots if slots is None else slots,
            "port": 0,
            "start_timeout_s": start_timeout,
        }
        make = stack_options if aws or (aws is None and not is_modelled) else _serve_options
        options = DemoOptions(
            service=make(**values, home=folder, temporary=None if home else folder),
            sources=Sources(quiet=quiet, flood=flood, seed=seed, fit=size.fit),
            seconds=size.seconds if seconds is None else seconds,
            calibration_requests=size.calibration_requests,
            together=is_modelled,
        )
        played = asyncio.run(_until_stopped(options, console))
    if played is None:
        raise typer.Exit(130)
    if json:
        sys.stdout.write(json_module.dumps(as_json(played.runs, played.verdict)) + "\n")
    else:
        print_report(console, played.runs, played.verdict)
    raise typer.Exit(_EXIT_CODES[played.verdict.outcome])


def _serve_options(**values: object) -> ServeOptions:
    return validated(ServeOptions, **values)


async def _until_stopped(options: DemoOptions, console: Console) -> PlayedDemo | None:
    """Run the demo. Return None if a signal stopped it; every process has ended then."""
    playing = asyncio.ensure_future(run_demo(options, console))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, playing.cancel)
    try:
        return await playing
    except asyncio.CancelledError:
        say(console, "demo: stopped")
        return None
