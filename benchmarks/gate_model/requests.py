"""The production store's requests in virtual time: latency, the client's CPU, stalls, and what DynamoDB's tail does.

Latencies as in the model that the design used: a read 4 ms and a put 5 ms in the mean, log-normal; with a
P99 above that, one request in 50 takes up to twice the P99 longer. A request takes effect at 20 to 90 % of its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from math import inf
from random import Random
from typing import Any

from botocore.exceptions import ReadTimeoutError

from dispatcher.ports import Clock, Log
from dispatcher.stores.dynamodb.log import DynamoLog
from dispatcher.stores.dynamodb.requests import Reads, Requests
from dispatcher.stores.dynamodb.store import READ_TIMEOUT_S
from dispatcher.stores.dynamodb.table import DynamoTable
from dispatcher.stores.hedged_log import HedgedLog
from dispatcher.stores.records.invocations import InvocationRecords, MailboxRecords
from dispatcher.stores.records.usage import UsageRecords
from tests.support.server_time import IgnoredServerTime

READ_S, PUT_S = 0.004, 0.005
TAIL_SHARE = 0.02


@dataclass
class Weather:
    """What DynamoDB does to its requests. `p99_s`: 0 is a light tail."""

    random: Random
    p99_s: float = 0.0
    stalled_until: dict[str, float] = field(default_factory=dict)
    """By the beginning of a partition's key: until when (monotonic) no request there takes effect."""

    def latency_s(self, mean_s: float) -> float:
        latency_s = mean_s * self.random.lognormvariate(-0.045, 0.3)
        if self.p99_s and self.random.random() < TAIL_SHARE:
            latency_s += 2 * self.p99_s * self.random.random()
        return latency_s

    def stall_s(self, pk: str, now: float) -> float:
        untils = (until for start, until in self.stalled_until.items() if pk.startswith(start))
        return max(max(untils, default=-inf) - now, 0.0)


@dataclass
class ProcessCpu:
    """The CPU of one process: a request takes `cpu_s` of it, one after the other. `slow`: of CPU and of latency."""

    cpu_s: float = 0.0015
    slow: float = 1.0
    busy_until: float = 0.0

    def wait_s(self, now: float) -> float:
        self.busy_until = max(self.busy_until, now) + self.cpu_s * self.slow
        return self.busy_until - now


class ModelledRequests(Requests):
    def __init__(self, client: Any, table: str, weather: Weather, process: ProcessCpu, clock: Clock) -> None:
        super().__init__(client, table, clock, weather.random, 1, IgnoredServerTime())
        self._weather, self._process = weather, process

    async def _once(self, call: partial[dict[str, Any]]) -> dict[str, Any]:
        """Send one request. As in production it goes on when its caller is cancelled."""
        await self.clock.sleep(self._process.wait_s(self.clock.monotonic()))
        method, arguments, until = call.args
        if self.clock.monotonic() > until:
            return call()  # refuses it as in production, where it waited for a thread
        call = partial(self._answer, method, arguments, inf)  # once sent it takes as long as it takes
        loop = asyncio.get_running_loop()
        answered = loop.create_task(self._travel(call), context=Context())  # outside of the host that may be paused
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                reply, error = await asyncio.shield(answered)
        except TimeoutError:
            return self._answer(_timed_out, {}, inf)
        if error is not None:
            raise error
        return reply

    async def _travel(self, call: partial[dict[str, Any]]) -> tuple[dict[str, Any], Exception | None]:
        method, arguments = call.args[:2]
        is_put = method.__name__ in ("put_item", "update_item")
        latency_s = self._weather.latency_s(PUT_S if is_put else READ_S) * self._process.slow
        there_s = latency_s * self._weather.random.uniform(0.2, 0.9)
        await asyncio.sleep(there_s)
        await asyncio.sleep(self._weather.stall_s(_partition(arguments), self.clock.monotonic()))
        reply, error = _result(call)
        await asyncio.sleep(latency_s - there_s)
        return reply, error


class ModelledStore:
    """The parts of the production store, over a modelled table, for one process."""

    def __init__(self, client: Any, table: str, weather: Weather, process: ProcessCpu, clock: Clock) -> None:
        """`client`: a ModelledTable, or a DynamoDB client."""
        self._requests = ModelledRequests(client, table, weather, process, clock)
        self._reads = Reads(self._requests)
        items = DynamoTable(self._requests, self._reads)
        self.mailboxes = MailboxRecords(items)
        self.invocations = InvocationRecords(items)
        self.projections = UsageRecords(items)

    def log(self, shard: str, *, hedged: bool = True, stripes: int = 1) -> Log:
        log = DynamoLog(self._requests, self._reads, shard, stripes)
        return HedgedLog(log, self._requests.is_throttled) if hedged else log


def _result(call: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], Exception | None]:
    try:
        return call(), None
    except Exception as error:
        return {}, error


def _partition(arguments: dict[str, Any]) -> str:
    for place in ("Item", "Key"):
        if place in arguments:
            return str(arguments[place]["pk"]["S"])
    return str(arguments["ExpressionAttributeValues"][":pk"]["S"])


def _timed_out(**_: Any) -> dict[str, Any]:
    raise ReadTimeoutError(endpoint_url="modelled")
