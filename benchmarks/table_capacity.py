"""Counts the capacity units that requests to DynamoDB consume, on Amazon's DynamoDB Local. Used by log_capacity.py."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import boto3
from botocore.config import Config

from dispatcher.stores.dynamodb.store import client_config, create_table
from dispatcher.stores.layout import MANIFEST_PREFIX
from dispatcher.stores.table import SORT
from headgate.local import dynamodb_local

READS = frozenset(["GetItem", "BatchGetItem", "Query"])
TABLE = "capacity"
START_TIMEOUT_S = 60.0


@dataclass
class Consumed:
    """Requests, and the units that DynamoDB would bill."""

    requests: int = 0
    write_units: float = 0.0
    read_units: float = 0.0
    snapshots: int = 0
    """Puts of a snapshot's manifest."""

    def __sub__(self, other: Consumed) -> Consumed:
        return Consumed(
            self.requests - other.requests,
            self.write_units - other.write_units,
            self.read_units - other.read_units,
            self.snapshots - other.snapshots,
        )


class CapacityMeter:
    """Has each request of a client report its units, and adds them up. Two figures do not come from DynamoDB Local:

    - a query that finds nothing reports 0 units there, and is billed as the smallest read: 1, or 0.5 if it is only
      eventually consistent;
    - a put that its condition refuses reports nothing, and is billed by the size of its item.
    """

    def __init__(self, client: Any) -> None:
        self.total = Consumed()
        client.meta.events.register("provide-client-params.dynamodb.*", self._ask)
        client.meta.events.register("after-call.dynamodb.*", self._add)

    def taken(self) -> Consumed:
        """Return what was consumed so far. The difference of two is what happened between them."""
        return replace(self.total)

    def _ask(self, params: dict[str, Any], model: Any, context: dict[str, Any], **_: Any) -> dict[str, Any]:
        if "ReturnConsumedCapacity" in model.input_shape.members:
            params["ReturnConsumedCapacity"] = "TOTAL"
        context["smallest_read"] = 1.0 if params.get("ConsistentRead") else 0.5
        item = params.get("Item", {})
        self.total.snapshots += SORT in item and item[SORT]["S"].startswith(MANIFEST_PREFIX)
        context["item_units"] = float(-(-item_bytes(item) // 1024))
        return params

    def _add(self, parsed: dict[str, Any], model: Any, context: dict[str, Any], **_: Any) -> None:
        self.total.requests += 1
        consumed = parsed.get("ConsumedCapacity", [])
        units = sum(each["CapacityUnits"] for each in (consumed if isinstance(consumed, list) else [consumed]))
        if model.name in READS:
            self.total.read_units += max(units, context["smallest_read"])
        elif parsed.get("Error", {}).get("Code") == "ConditionalCheckFailedException":
            self.total.write_units += max(1.0, context["item_units"])
        else:
            self.total.write_units += units


def item_bytes(item: dict[str, dict[str, Any]]) -> int:
    """Return about how many bytes DynamoDB counts for an encoded item of strings, numbers and binary."""
    values = [(name, value) for name, typed in item.items() for value in typed.values()]
    return sum(
        len(name) + (len(value) if isinstance(value, bytes) else len(str(value).encode())) for name, value in values
    )


@contextmanager
def metered_table() -> Iterator[tuple[Any, CapacityMeter]]:
    """Start DynamoDB Local with an empty table TABLE. Raises FileNotFoundError if it is not installed."""
    jar = dynamodb_local.find()
    if jar is None:
        raise FileNotFoundError(f"DynamoDB Local is not installed: {dynamodb_local.HOW_TO_INSTALL}")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    command = dynamodb_local.command(jar, port)
    process = subprocess.Popen(command, cwd=jar.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        client = _client(f"http://127.0.0.1:{port}")
        _until_it_answers(client)
        create_table(client, TABLE)
        yield client, CapacityMeter(client)
    finally:
        process.kill()
        process.wait()


def _client(url: str) -> Any:
    return boto3.client(
        "dynamodb",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",  # noqa: S106 - it checks no signature
        config=client_config().merge(Config(read_timeout=60)),
    )


def _until_it_answers(client: Any) -> None:
    until = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            client.list_tables()
            return
        except Exception:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
