"""The commands that read a gate's log: `headgate top`, `plan` and `formats`. No process has to run for them.

`top` shows shares, guarantees, waiting, latencies, workers and leader, live or once. `plan` shows the queues by model,
the models of the workers, ordered swaps, and what will be late. `formats` shows which format the log has and what each
process reads; with --use, it also changes that, which needs a leader.
"""

from __future__ import annotations

import asyncio
import json as json_module
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.formats import NEWEST, OLDEST, Reader
from dispatcher.monitor.follower import LogFollower, open_followers
from dispatcher.ports import Store
from dispatcher.processes.bootstrap import NoLauncher, RealClock, RealIds, make_links, make_log_keeper
from dispatcher.service.link.sharded import combine
from dispatcher.service.log_keeper import use_format
from dispatcher.settings.config import Config
from headgate.cli.terminal.gate_store import Data, PoolName, with_store
from headgate.cli.terminal.serving import either, interrupted
from headgate.monitor import plan_json, plan_view, top_json, top_view
from headgate.serve.folder import DataFolder


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
        shards = open_followers(store, config, clock)
        for follower in shards:
            await follower.catch_up()
        if once or json:
            _print_pictures(shards, clock.now(), json)
        if not once:
            watching = _stream(shards, clock, every) if json else _live(shards, clock, every)
            task = asyncio.ensure_future(watching)
            await either(task, interrupted())
            if not task.cancelled():
                task.result()

    with_store(data, run, pool)


def _print_pictures(shards: Sequence[LogFollower], now: float, json: bool) -> None:
    """Print a view or a line of JSON for each shard. Of several shards, each has its name."""
    if not json:
        Console().print(_view(shards, now))
        return
    _print_lines(shards, [top_json(follower.picture(now)) for follower in shards])


def _print_lines(shards: Sequence[LogFollower], objects: Sequence[dict[str, Any]]) -> None:
    """Print an object for each shard as a line of JSON. Of several shards, each has its name."""
    for follower, each in zip(shards, objects, strict=True):
        named = {"shard": follower.shard} if len(shards) > 1 else {}
        sys.stdout.write(json_module.dumps({**named, **each}) + "\n")
    sys.stdout.flush()


def _view(shards: Sequence[LogFollower], now: float, problem: str = "") -> RenderableType:
    return _join_views(shards, [top_view(follower.picture(now), problem) for follower in shards])


def _join_views(shards: Sequence[LogFollower], views: Sequence[RenderableType]) -> RenderableType:
    """Return a view for each shard below each other. Of several shards, each has its name."""
    if len(shards) == 1:
        return views[0]
    named = zip(shards, views, strict=True)
    return Group(*(part for follower, view in named for part in (f"shard {follower.shard}", view)))


async def _stream(shards: Sequence[LogFollower], clock: RealClock, every_s: float) -> None:
    """Print lines until cancelled. While the store does not answer, print only a note on standard error."""
    while True:
        await clock.sleep(every_s)
        try:
            for follower in shards:
                await follower.catch_up()
            _print_pictures(shards, clock.now(), json=True)
        except StoreUnavailable as error:
            sys.stderr.write(f"headgate: not up to date: {error}\n")


async def _live(shards: Sequence[LogFollower], clock: RealClock, every_s: float) -> None:
    """Redraw until cancelled. While the store does not answer, show the last view with a note."""
    with Live(auto_refresh=False, screen=True) as live:
        problem = ""
        while True:
            live.update(_view(shards, clock.now(), problem), refresh=True)
            await clock.sleep(every_s)
            try:
                for follower in shards:
                    await follower.catch_up()
                problem = ""
            except StoreUnavailable as error:
                problem = str(error)


def plan(
    data: Data = None,
    pool: PoolName = "",
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON for each shard.")] = False,
) -> None:
    """Show the plan of the fleet. It is read from the log, so no process has to run."""

    async def run(store: Store, config: Config) -> None:
        clock = RealClock()
        shards = open_followers(store, config, clock)
        for follower in shards:
            await follower.catch_up()
        now = clock.now()
        found = [(follower.picture(now), follower.needed(now)) for follower in shards]
        if json:
            _print_lines(shards, [plan_json(picture, needed) for picture, needed in found])
        else:
            Console().print(_join_views(shards, [plan_view(picture, needed) for picture, needed in found]))

    with_store(data, run, pool)


def formats(
    data: Data = None,
    pool: PoolName = "",
    use: Annotated[
        int | None,
        typer.Option(
            min=OLDEST, max=NEWEST, help="Write the log in this format from now on. Only if every process reads it."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the log's format and what the connected processes read. docs/operations.md says how two versions serve
    together, and how to go back."""

    async def run(store: Store, config: Config) -> tuple[int, Sequence[Reader] | None]:
        clock = RealClock()
        links = make_links(_with_secret(config, data), store, clock, NoLauncher())
        try:
            if use is not None:
                keepers = [make_log_keeper(config, each, store, clock, RealIds()) for each in config.shard_names]
                await use_format(combine(links), keepers, use)
            shards = open_followers(store, config, clock)
            for follower in shards:
                await follower.catch_up()
            return min(follower.log_format for follower in shards), await combine(links).readers()
        finally:
            for link in links:
                await link.close()

    found, readers = with_store(data, run, pool)
    if json:
        rows = None if readers is None else [reader._asdict() for reader in readers]
        known = {"log": found, "this_version": {"oldest": OLDEST, "newest": NEWEST}, "connected": rows}
        sys.stdout.write(json_module.dumps(known) + "\n")
    else:
        _print_formats(found, readers)


def _with_secret(config: Config, data: Path | None) -> Config:
    """Return the configuration with the fleet's secret, which a data folder holds."""
    return config if data is None else config.model_copy(update={"worker_secret": DataFolder(data).secret()})


def _print_formats(found: int, readers: Sequence[Reader] | None) -> None:
    console = Console()
    console.print(f"the log has format {found}; this version reads and writes {OLDEST} to {NEWEST}", highlight=False)
    if readers is None:
        console.print("the leader does not answer, or is of an older version")
        return
    table = Table("process", "role", "reads", box=None)
    for reader in readers:
        table.add_row(reader.process, reader.role, str(reader.reads))
    console.print(table if readers else "no process is connected to a leader")
    if found < NEWEST and all(reader.reads >= NEWEST for reader in readers):
        console.print(
            f"If every other process was updated too (functions, `headgate top`): headgate formats --use {NEWEST}",
            highlight=False,
        )
