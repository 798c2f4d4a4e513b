"""DynamoDB's log and requests: what a query sees, how long a request may take, and what a wrong clock may write."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import format_datetime
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.model.errors import LogGap, StoreUnavailable
from dispatcher.stores.dynamodb.log import DynamoLog
from dispatcher.stores.dynamodb.requests import BUDGET_S, Reads, Requests
from dispatcher.stores.dynamodb.server_time import OBSERVED_EVERY_S, ServerTime
from dispatcher.stores.layout import position_text
from tests.conformance.store_world import FakeClock
from tests.support.hang_guard import HANG_S


class Queries:
    """A query is no moment in time: what looks like a gap may have been written while it passed.

    Answers each query with the entries that are visible to it. `asked`: the limit of each.
    """

    def __init__(self, *visible: set[int]) -> None:
        self._visible = list(visible)
        self.asked: list[int] = []

    async def query(
        self, _partition: str, _condition: str = "", values: dict[str, str] | None = None, limit: int = 0, **_: Any
    ) -> list[dict[str, Any]]:
        if values is None:  # is the log striped?
            return []
        self.asked.append(limit)
        first = int(values[":from"])
        chosen = sorted(number for number in self._visible.pop(0) if number >= first)
        return [{"sk": position_text(number), "entry": b"%d" % number} for number in chosen[:limit]]


def log_of(queries: Queries) -> DynamoLog:
    return DynamoLog(SimpleNamespace(clock=FakeClock()), queries, "s")  # type: ignore[arg-type]


async def test_an_entry_that_was_written_behind_a_query_is_read_again() -> None:
    queries = Queries({0, 1, 3}, {0, 1, 2, 3, 4})
    assert list(await log_of(queries).read(0, 5)) == [b"0", b"1", b"2", b"3", b"4"]
    assert queries.asked == [5, 3]


async def test_a_query_that_meets_two_writes_is_repeated_twice() -> None:
    queries = Queries({0, 2}, {0, 1, 2, 4}, {0, 1, 2, 3, 4})
    assert list(await log_of(queries).read(0, 9)) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(("first", "missing"), [(0, 2), (2, 2)])
async def test_an_entry_that_is_missing_twice_is_a_gap(first: int, missing: int) -> None:
    queries = Queries({0, 1, 3}, {0, 1, 3, 4})
    with pytest.raises(LogGap, match=f"no entry {missing}"):
        await log_of(queries).read(first)


class HangingClient:
    """Answers each request once it may."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.began, self.may_answer = threading.Event(), threading.Event()

    def get_item(self, *, TableName: str, Key: str) -> dict[str, Any]:  # noqa: N803 - as boto3 has them
        self.requests.append(Key)
        self.began.set()
        assert self.may_answer.wait(HANG_S)
        return {}


async def test_a_request_whose_time_is_over_is_not_sent() -> None:
    """With a hundred requests ahead of it, each of them silent for seconds, its caller would wait for minutes."""
    clock, client = FakeClock(), HangingClient()
    requests = Requests(client, "table", clock, Random(1), 1, ServerTime())  # type: ignore[arg-type]
    sent = [asyncio.create_task(requests.send("get_item", Key=key)) for key in ("first", "second")]
    assert await asyncio.to_thread(client.began.wait, HANG_S)
    clock.time += BUDGET_S + 1
    client.may_answer.set()
    assert await sent[0] == {}
    with pytest.raises(StoreUnavailable, match="too slow"):
        await sent[1]
    assert client.requests == ["first"]
    requests.close()


HOUR_S = 3600.0


class JumpingClock:
    """`off_s`: how far the wall clock is ahead of the true time. `suspended_s`: how long the machine slept."""

    def __init__(self) -> None:
        self.true, self.off_s, self.suspended_s = 1_000_000.0, 0.0, 0.0

    def now(self) -> float:
        return self.true + self.off_s

    def monotonic(self) -> float:
        return self.true - self.suspended_s

    async def sleep(self, seconds: float) -> None:
        self.true += seconds


class DatedTable:
    """Answers with the true time. `jump_s`: how far the clock jumps during the next request."""

    def __init__(self, clock: JumpingClock) -> None:
        self.puts, self.reads, self.jump_s = 0, 0, 0.0
        self._clock = clock

    def query(self, **_request: Any) -> dict[str, Any]:
        self.reads += 1
        return self._reply()

    def put_item(self, **_request: Any) -> dict[str, Any]:
        self.puts += 1
        return self._reply()

    def _reply(self) -> dict[str, Any]:
        self._clock.off_s, self.jump_s = self._clock.off_s + self.jump_s, 0.0
        date = format_datetime(datetime.fromtimestamp(int(self._clock.true), UTC), usegmt=True)
        return {"Items": [], "ResponseMetadata": {"HTTPHeaders": {"date": date}}}


class World:
    def __init__(self) -> None:
        self.clock = JumpingClock()
        self.table = DatedTable(self.clock)
        self.requests = Requests(self.table, "t", self.clock, Random(0), 1, ServerTime())  # type: ignore[arg-type]
        self.log = DynamoLog(self.requests, Reads(self.requests), "s")


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.requests.close()


async def test_the_first_entry_after_a_jump_of_the_clock_is_not_written(world: World) -> None:
    """The log's time never goes back: with this entry, each call of the next hour would be past its deadline."""
    await world.log.append(0, b"before")
    world.clock.off_s = HOUR_S
    with pytest.raises(StoreUnavailable, match=r"3599\.0 s ahead of DynamoDB's"):
        await world.log.append(1, b"after")
    assert world.table.puts == 1


async def test_a_jump_during_a_request_is_noticed(world: World) -> None:
    world.table.jump_s = HOUR_S
    await world.log.read(0)
    with pytest.raises(StoreUnavailable, match="ahead of"):
        await world.log.append(0, b"x")


async def test_a_wrong_clock_is_logged_once_a_minute(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A gate process with a wrong clock retries for ever: without this line its log was empty."""
    await world.log.read(0)
    world.clock.off_s = HOUR_S
    for _ in range(90):
        with suppress(StoreUnavailable):
            await world.log.append(0, b"x")
        world.clock.true += 1.0
    lines = [record.getMessage() for record in caplog.records if record.name == "headgate.store"]
    assert len(lines) == 2
    assert lines[0] == "no entry is written: This process's clock is 3599.0 s ahead of DynamoDB's: set it right."


@pytest.mark.parametrize("idle_s", [0.0, OBSERVED_EVERY_S, HOUR_S])
async def test_a_clock_that_is_right_again_may_write_at_once(world: World, idle_s: float) -> None:
    await world.log.read(0)
    world.clock.off_s = -HOUR_S
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="behind"):
            await world.log.append(0, b"x")
    world.clock.off_s = 0.0
    world.clock.true += idle_s
    assert await world.log.append(0, b"x") == b"x"


async def test_a_machine_that_was_suspended_reads_the_time_and_writes(world: World) -> None:
    """Its monotonic clock stood still, its wall clock is right."""
    await world.log.append(0, b"x")
    world.clock.true += HOUR_S
    world.clock.suspended_s = HOUR_S
    assert await world.log.append(1, b"y") == b"y"
    assert await world.log.append(2, b"z") == b"z"
    assert (world.table.puts, world.table.reads) == (3, 1)
