"""Opens the administration of tenants: the function that HEADGATE_ADMIN_FUNCTION names, or else the store itself."""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from dispatcher.operations.administration import StoreAdmin, TenantAdmin, TenantData
from dispatcher.ports import Store
from dispatcher.processes.bootstrap import RealClock, RealIds, make_files
from dispatcher.settings.config import Config
from headgate.cli.terminal.gate_store import with_store

FUNCTION_VARIABLE = "HEADGATE_ADMIN_FUNCTION"
STS_S = 3.0
T = TypeVar("T")


def admin_function(data: Path | None) -> str:
    """Return the name of the function that administers; empty if the store is changed directly."""
    return os.environ.get(FUNCTION_VARIABLE, "") if data is None else ""


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

        limits = ClientConfig(connect_timeout=STS_S, read_timeout=STS_S, retries={"total_max_attempts": 1})
        with suppress(BotoCoreError, ClientError, ResponseParserError):
            return str(boto3.client("sts", config=limits).get_caller_identity()["Arn"])
    return f"local:{_user()}@{socket.gethostname()}"


def _user() -> str:
    """Return the user's name; a container may run as a number without one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
