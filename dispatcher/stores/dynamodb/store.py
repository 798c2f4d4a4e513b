"""The store in DynamoDB (layout.py has its items).

An append, a read of the log's end, a poll of a mailbox and an answer take one request each. A new invocation with a key
takes two. tests/conformance counts the requests, benchmarks/log_capacity.py their costs.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from botocore.config import Config

from dispatcher.ports import Clock, Log
from dispatcher.stores.dynamodb.batches import DynamoBatches
from dispatcher.stores.dynamodb.invocations import DynamoInvocations
from dispatcher.stores.dynamodb.layout import EXPIRY, table_definition
from dispatcher.stores.dynamodb.log import DynamoLog
from dispatcher.stores.dynamodb.mailboxes import DynamoMailboxes
from dispatcher.stores.dynamodb.reads import Reads
from dispatcher.stores.dynamodb.requests import Requests
from dispatcher.stores.dynamodb.responses import DynamoResponses
from dispatcher.stores.dynamodb.server_time import ServerTime
from dispatcher.stores.dynamodb.tenants import DynamoTenants
from dispatcher.stores.dynamodb.usage import DynamoUsage
from dispatcher.stores.hedged_log import HedgedLog

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

THREADS = 16
CONNECT_TIMEOUT_S = 1.0
READ_TIMEOUT_S = 3.0


def client_config(threads: int = THREADS) -> Config:
    """Return the configuration of a client for DynamoStore.

    The client tries each call once, because the store itself retries. Timeouts are short; each thread has a connection.
    """
    return Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        max_pool_connections=threads,
        retries={"total_max_attempts": 1, "mode": "standard"},
        tcp_keepalive=True,
    )


def create_table(client: DynamoDBClient, name: str) -> None:
    """Create the table and wait until it is active. For local stand-ins and tests; on AWS, infra/ creates the table."""
    client.create_table(**table_definition(name))
    client.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
    client.update_time_to_live(TableName=name, TimeToLiveSpecification={"Enabled": True, "AttributeName": EXPIRY})


class DynamoStore(DynamoTenants, DynamoInvocations, DynamoResponses, DynamoBatches, DynamoUsage):
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
    ) -> None:
        """`is_hedged`: repeat slow requests of the log (hedged_log.py)."""
        self._requests = Requests(client, table, clock, random, threads, server_time or ServerTime())
        self._reads = Reads(self._requests)
        self._is_hedged = is_hedged
        self._mailboxes = DynamoMailboxes(self._requests, self._reads)

    @property
    def mailboxes(self) -> DynamoMailboxes:
        return self._mailboxes

    def log(self, shard: str) -> Log:
        log = DynamoLog(self._requests, self._reads, shard)
        return HedgedLog(log, self._requests.is_throttled) if self._is_hedged else log

    async def erase(self, tenant: str) -> None:
        await self.erase_batches(tenant)

    async def close(self) -> None:
        """Release the threads. Requests that are under way end by themselves."""
        self._requests.close()
