"""The store in DynamoDB (dispatcher/stores/layout.py has its items).

An append, a read of the log's end, a poll of a mailbox and an answer take one request each. A new invocation with a key
takes two. tests/conformance counts the requests, benchmarks/log_capacity.py their costs.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from botocore.config import Config

from dispatcher.ports import Clock, Log
from dispatcher.stores.dynamodb.log import DynamoLog
from dispatcher.stores.dynamodb.requests import Reads, Requests
from dispatcher.stores.dynamodb.server_time import ServerTime
from dispatcher.stores.dynamodb.table import DynamoTable
from dispatcher.stores.hedged_log import HedgedLog
from dispatcher.stores.records.record_store import RecordStore
from dispatcher.stores.table import EXPIRY, PARTITION, SORT

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

THREADS = 16
_CONNECT_TIMEOUT_S = 1.0
READ_TIMEOUT_S = 3.0


def client_config(threads: int = THREADS) -> Config:
    """Return the configuration of a client for DynamoStore.

    The client tries each call once, because the store itself retries. Timeouts are short; each thread has a connection.
    """
    return Config(
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        max_pool_connections=threads,
        retries={"total_max_attempts": 1, "mode": "standard"},
        tcp_keepalive=True,
    )


def table_definition(name: str) -> dict[str, Any]:
    """Return the arguments of CreateTable. (UpdateTimeToLive sets the expiry on `ttl`.)"""
    return {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": [
            {"AttributeName": PARTITION, "KeyType": "HASH"},
            {"AttributeName": SORT, "KeyType": "RANGE"},
        ],
        "AttributeDefinitions": [
            {"AttributeName": PARTITION, "AttributeType": "S"},
            {"AttributeName": SORT, "AttributeType": "S"},
        ],
    }


def create_table(client: DynamoDBClient, name: str) -> None:
    """Create the table and wait until it is active. For local stand-ins and tests; on AWS, infra/ creates the table."""
    client.create_table(**table_definition(name))
    client.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
    client.update_time_to_live(TableName=name, TimeToLiveSpecification={"Enabled": True, "AttributeName": EXPIRY})


class DynamoStore(RecordStore):
    """dispatcher.ports.Store."""

    def __init__(
        self,
        client: DynamoDBClient,
        table: str,
        *,
        clock: Clock,
        random: Random,
        threads: int = THREADS,
        server_time: ServerTime | None = None,
        is_hedged: bool = True,
        log_stripes: int = 1,
    ) -> None:
        """`is_hedged`: repeat slow requests of the log (hedged_log.py). `log_stripes`: of logs that are not striped yet
        (log_items.py)."""
        self._requests = Requests(client, table, clock, random, threads, server_time or ServerTime())
        self._reads = Reads(self._requests)
        self._is_hedged, self._log_stripes = is_hedged, log_stripes
        super().__init__(DynamoTable(self._requests, self._reads))

    def log(self, shard: str) -> Log:
        log = DynamoLog(self._requests, self._reads, shard, self._log_stripes)
        return HedgedLog(log, self._requests.is_throttled) if self._is_hedged else log

    async def close(self) -> None:
        """Release the threads. Requests that are under way end by themselves."""
        self._requests.close()
