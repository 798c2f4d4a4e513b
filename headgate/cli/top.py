"""`headgate top` shows shares, guarantees, waiting, latencies, workers and leader, live or once."""

from __future__ import annotations

import asyncio
import json as json_module
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from dispatcher.model.errors import StoreUnavailable
from dispatcher.monitor.follower import LogFollower, open_follower
from dispatcher.ports import Store
from dispatcher.processes.bootstrap import RealClock
from dispatcher.settings.config import Config
from headgate.cli.terminal.gate_store import Data, PoolName, with_store
from headgate.cli.terminal.signals import either, interrupted
from headgate.monitor import top_json, top_view


def top(
    data: Data = None,
    pool: PoolName = "",
    every: Annotated[float, typer.Option(help="Seconds between two views.", min=0.1, max=3600)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one view and end.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print each view as a line of JSON.")] = False,
) -> None:
    """Show the state of the gate until Ctrl-C. It is read from the log, so no process has to run."""

    async def run(store: Store, config: Config) -> None:
        clock = RealClock()
        follower = open_follower(store, config, clock)
        await follower.catch_up()
        if once or json:
            _print(follower, clock.now(), json)
        if not once:
            watching = _stream(follower, clock, every) if json else _live(follower, clock, every)
            task = asyncio.ensure_future(watching)
            await either(task, interrupted())
            if not task.cancelled():
                task.result()

    with_store(data, run, pool)


def _print(follower: LogFollower, now: float, json: bool) -> None:
    picture = follower.picture(now)
    if json:
        sys.stdout.write(json_module.dumps(top_json(picture)) + "\n")
        sys.stdout.flush()
    else:
        Console().print(top_view(picture))


async def _stream(follower: LogFollower, clock: RealClock, every_s: float) -> None:
    """Print lines until cancelled. While the store does not answer, print only a note on standard error."""
    while True:
        await clock.sleep(every_s)
        try:
            await follower.catch_up()
            _print(follower, clock.now(), json=True)
        except StoreUnavailable as error:
            sys.stderr.write(f"headgate: not up to date: {error}\n")


async def _live(follower: LogFollower, clock: RealClock, every_s: float) -> None:
    """Redraw until cancelled. While the store does not answer, show the last view with a note."""
    with Live(auto_refresh=False, screen=True) as live:
        problem = ""
        while True:
            live.update(top_view(follower.picture(clock.now()), problem), refresh=True)
            await clock.sleep(every_s)
            try:
                await follower.catch_up()
                problem = ""
            except StoreUnavailable as error:
                problem = str(error)
