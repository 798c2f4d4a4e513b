"""`headgate formats` shows which format the log has and what each process reads, and changes the log's format."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dispatcher.model.formats import NEWEST, OLDEST, Reader
from dispatcher.monitor.follower import open_follower
from dispatcher.ports import Store
from dispatcher.processes.bootstrap import NoLauncher, RealClock, RealIds, make_link, make_log_keeper
from dispatcher.service.log_keeper import use_format
from dispatcher.settings.config import Config
from headgate.cli.terminal.gate_store import Data, PoolName, with_store
from headgate.serve.folder import DataFolder


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
        link = make_link(_with_secret(config, data), store, clock, NoLauncher())
        try:
            if use is not None:
                await use_format(link, make_log_keeper(config, store, clock, RealIds()), use)
            follower = open_follower(store, config, clock)
            await follower.catch_up()
            return follower.log_format, await link.readers()
        finally:
            await link.close()

    found, readers = with_store(data, run, pool)
    if json:
        rows = None if readers is None else [reader._asdict() for reader in readers]
        known = {"log": found, "this_version": {"oldest": OLDEST, "newest": NEWEST}, "connected": rows}
        sys.stdout.write(json_module.dumps(known) + "\n")
    else:
        _print(found, readers)


def _with_secret(config: Config, data: Path | None) -> Config:
    """Return the configuration with the fleet's secret, which a data folder holds."""
    return config if data is None else config.model_copy(update={"worker_secret": DataFolder(data).secret()})


def _print(found: int, readers: Sequence[Reader] | None) -> None:
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
