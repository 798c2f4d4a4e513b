"""Opens the administration of tenants: the function that HEADGATE_ADMIN_FUNCTION names, or else the store itself.

After a change, it warns if the guarantees exceed what the workers deliver.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from dispatcher.model.errors import ConfigurationError
from dispatcher.model.facts import WorkerSet
from dispatcher.monitor.follower import open_followers
from dispatcher.operations.administration import Booking, StoreAdmin, TenantAdmin, TenantData, booking
from dispatcher.ports import Store
from dispatcher.processes.bootstrap import RealClock, RealIds, make_files
from dispatcher.settings.config import Config
from headgate.cli.terminal.gate_store import with_store

_FUNCTION_VARIABLE = "HEADGATE_ADMIN_FUNCTION"
_STS_S = 3.0
T = TypeVar("T")


def admin_function(data: Path | None) -> str:
    """Return the name of the function that administers; empty if the store is changed directly."""
    return os.environ.get(_FUNCTION_VARIABLE, "") if data is None else ""


def with_admin(data: Path | None, run: Callable[[TenantAdmin], Awaitable[T]]) -> T:
    """Run `run` with the administration. Raises ConfigurationError."""
    if function := admin_function(data):

        async def remote() -> T:
            return await run(_function_admin(function))

        return asyncio.run(remote())

    async def work(store: Store, config: Config) -> T:
        return await run(_store_admin(store, config))

    return with_store(data, work)


def admin_of(data: Path | None, store: Store, config: Config) -> TenantAdmin:
    """Return the administration for a command that has the store open anyway."""
    function = admin_function(data)
    return _function_admin(function) if function else _store_admin(store, config)


def _function_admin(function: str) -> TenantAdmin:
    from headgate.cli.tenants.admin_function import FunctionAdmin  # boto3 takes long to load

    return FunctionAdmin(function)


def _store_admin(store: Store, config: Config) -> TenantAdmin:
    clock = RealClock()
    return StoreAdmin(store, RealIds(), clock, lambda: _actor(config), TenantData(store, make_files(config, clock)))


def _actor(config: Config) -> str:
    """Return the name in audit records: the AWS identity for a table, if STS names it, else this machine's user.

    Callers that can write the table can write any name. Only headgate-admin proves it
    (dispatcher/processes/caller_identity.py).
    """
    if config.store == "dynamodb":
        import boto3
        from botocore.config import Config as ClientConfig
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError  # DynamoDB Local answers, and knows no STS

        limits = ClientConfig(connect_timeout=_STS_S, read_timeout=_STS_S, retries={"total_max_attempts": 1})
        with suppress(BotoCoreError, ClientError, ResponseParserError):
            return str(boto3.client("sts", config=limits).get_caller_identity()["Arn"])
    return f"local:{_user()}@{socket.gethostname()}"


def _user() -> str:
    """Return the user's name; a container may run as a number without one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def warn_if_overbooked(data: Path | None) -> None:
    """Compare the guarantees with the capacity, which is in the log; callers of headgate-admin may not read it. Call
    this after the change was made and its key was printed."""
    if admin_function(data):
        return
    try:
        bookings = with_store(data, _bookings)
    except ConfigurationError as error:
        sys.stderr.write(f"headgate: the change was made, but the capacity for the guarantees is unknown: {error}\n")
        return
    for pool, booked in bookings.items():
        if not booked.is_overbooked:
            continue
        place = f" in pool {pool}" if len(bookings) > 1 else ""
        sys.stderr.write(
            f"headgate: overbooked{place}: the guarantees add up to {booked.promised_per_s:.0f} service units per "
            f"second, the workers serve {booked.capacity_per_s:.0f}; guarantees are scaled down while all tenants are "
            "active\n"
        )


async def _bookings(store: Store, config: Config) -> dict[str, Booking]:
    """Return for each pool the sum of its guarantees, and the capacity of its workers in the log."""
    tenants, found = await store.list_tenants(), dict[str, Booking]()
    for each in config.each_pool():
        workers: list[WorkerSet] = []
        for follower in open_followers(store, each, RealClock()):
            await follower.catch_up()
            workers += follower.workers()
        found[each.pool] = booking(tenants, workers, each.models)
    return found
