"""Opens the store of a command: that of `--data DIR`, or that of HEADGATE_STORE and AWS's variables."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from dispatcher.model.errors import ConfigurationError, LogError, StoreUnavailable
from dispatcher.ports import Store
from dispatcher.processes.bootstrap import make_store
from dispatcher.settings.config import Config, load_config
from headgate.serve.folder import DataFolder

Data = Annotated[
    Path | None,
    typer.Option(help="Data folder of `headgate serve`; default: the store that HEADGATE_STORE names."),
]
PoolName = Annotated[str, typer.Option("--pool", help="The pool; default: HEADGATE_POOL, or the only one.")]
T = TypeVar("T")


def gate_config(data: Path | None) -> Config:
    """Return the gate's configuration. Raises ConfigurationError, also for a folder without a database."""
    if data is None:
        return load_config()
    folder = DataFolder(data).existing()
    own = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}  # as the server does
    return load_config({**own, **folder.settings(), "HEADGATE_STORE": folder.store, "HEADGATE_FILES": folder.files})


def with_store(data: Path | None, run: Callable[[Store, Config], Awaitable[T]], pool: str | None = None) -> T:
    """Run `run` with the store and its configuration, then close the store. Raises ConfigurationError.

    `pool`: the configuration is that of this pool, or of the only one if it is empty; None: that of all pools.
    """
    config = gate_config(data)
    if pool is not None:
        config = config.of_pool(pool)

    async def work() -> T:
        try:
            store = make_store(config)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}{_folder_hint(config)}") from None
        try:
            return await run(store, config)
        finally:
            await store.close()

    try:
        return asyncio.run(work())
    except StoreUnavailable as error:
        place = f"table {config.table!r}" if config.store == "dynamodb" else config.store
        reason = f" ({error.__cause__})" if error.__cause__ else ""
        raise ConfigurationError(f"{place}: {error}{reason}{_folder_hint(config)}") from None
    except LogError as error:
        names = " or ".join(repr(each.pool) for each in config.each_pool())
        raise ConfigurationError(f"the log of pool {names} cannot be read: {error}") from None


def _folder_hint(config: Config) -> str:
    """Return the hint for a command that was meant for the folder of `headgate serve`, but reads DynamoDB's table."""
    return "; for `headgate serve`, give its folder with --data" if config.store == "dynamodb" else ""
