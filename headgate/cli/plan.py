"""`headgate plan` shows the queues by model, the models of the workers, ordered swaps, and what will be late."""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated

import typer
from rich.console import Console

from dispatcher.monitor.follower import open_follower
from dispatcher.ports import Store
from dispatcher.processes.bootstrap import RealClock
from dispatcher.settings.config import Config
from headgate.cli.terminal.gate_store import Data, PoolName, with_store
from headgate.monitor import plan_json, plan_view


def plan(
    data: Data = None,
    pool: PoolName = "",
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Show the plan of the fleet. It is read from the log, so no process has to run."""

    async def run(store: Store, config: Config) -> None:
        clock = RealClock()
        follower = open_follower(store, config, clock)
        await follower.catch_up()
        now = clock.now()
        picture, needed = follower.picture(now), follower.needed(now)
        if json:
            sys.stdout.write(json_module.dumps(plan_json(picture, needed)) + "\n")
        else:
            Console().print(plan_view(picture, needed))

    with_store(data, run, pool)
