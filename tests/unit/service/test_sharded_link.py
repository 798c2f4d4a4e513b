"""A pool of several shards as a front sees it: each call has its shard, and a lost one fails what concerns it only."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dispatcher.model.commands import (
    Accept,
    Cancel,
    Command,
    Done,
    End,
    Leave,
    Offer,
    Outcome,
    Over,
    Refused,
    Retire,
    Return,
    Status,
    Tick,
    UseFormat,
    call_id,
)
from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.facts import WorkerSet
from dispatcher.model.formats import Reader
from dispatcher.model.shards import process_in, shard_name, shard_of_call, shard_of_tenant
from dispatcher.model.usage import UsageRow
from dispatcher.model.worker_protocol import execution_name
from dispatcher.service.link.sharded import ShardedLink, combine
from dispatcher.stores.layout import checked_shard
from tests.support.world.processes import accept
from tests.support.world.virtual_time import START

pytestmark = pytest.mark.virtual_time
PROCESS = "abcdefghijkl"
TENANTS = [f"tenant-{number}" for number in range(200)]


class ShardLink:
    """The link to one shard, which does what it is told."""

    def __init__(self, shard: int) -> None:
        self.process = process_in(PROCESS, shard)
        self.done: list[Command] = []
        self.held: list[str] = []
        self.workers = [worker("w1", 3), worker(f"only {shard}", 1)]
        self.fails: StoreUnavailable | None = None
        self.answer: Outcome = Done()
        self.launches: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self.fleet_s = 0.0
        self.rested = False

    def new_id(self, _tenant: str, /) -> str:
        return call_id(self.process, 1)

    async def do(self, command: Command) -> Outcome:
        if self.fails is not None:
            raise self.fails
        self.done.append(command)
        return self.answer

    def send(self, command: Command, take: Callable[[Outcome | StoreUnavailable], None]) -> None:
        self.done.append(command)
        take(self.answer)

    def hold(self, name: str, take: Callable[[Offer | Over], None]) -> None:
        self.held.append(name)

    def forget(self, name: str) -> None:
        self.held.remove(name)

    async def launched(self) -> tuple[str, int]:
        return await self.launches.get()

    async def readers(self) -> list[Reader] | None:
        return None if self.fails else [Reader(self.process, "client", 6)]

    async def fleet(self) -> list[WorkerSet]:
        await asyncio.sleep(self.fleet_s)
        if self.fails is not None:
            raise self.fails
        return self.workers

    async def usage(self, tenant: str | None, first_hour: int, last_hour: int) -> list[tuple[int, UsageRow]]:
        return [(0, UsageRow("a", "", 1, 1, 1, 1, 1.0, position=7))]

    async def rest(self) -> None:
        self.rested = True


def worker(name: str, slots: int, state: str = "serving") -> WorkerSet:
    return WorkerSet(name, f"http://{name}", "m", slots, 8192, 1000.0, 100.0 * slots, state)


def shards_of(count: int) -> tuple[ShardedLink, list[ShardLink]]:
    links = [ShardLink(number) for number in range(count)]
    return ShardedLink(links), links


class TestNames:
    def test_shard_0_is_what_a_pool_of_one_shard_has(self) -> None:
        assert (shard_name("chat", 0), process_in(PROCESS, 0)) == ("chat", PROCESS)

    def test_a_further_shard_has_a_name_that_no_pool_has_and_that_a_log_takes(self) -> None:
        name = shard_name("x" * 64, 15)
        assert checked_shard(name) == name
        assert "~" in name
        with pytest.raises(ValueError, match="a shard's name"):
            checked_shard("chat~1~2")

    @pytest.mark.parametrize("shard", [0, 1, 7, 15])
    def test_the_id_of_a_call_and_the_name_of_its_execution_say_the_shard(self, shard: int) -> None:
        name = call_id(process_in(PROCESS, shard), 123456)
        assert shard_of_call(name) == shard
        assert shard_of_call(execution_name(name, 2)) == shard

    @pytest.mark.parametrize("name", ["", "abc", "abc-1", "a.b-1", "a.-1"])
    def test_any_other_id_is_of_shard_0(self, name: str) -> None:
        assert shard_of_call(name) == 0

    @pytest.mark.parametrize("shards", [2, 3, 8])
    def test_tenants_spread_over_the_shards_and_stay(self, shards: int) -> None:
        found = Counter(shard_of_tenant(tenant, shards) for tenant in TENANTS)
        assert len(found) == shards
        assert max(found.values()) < 2 * len(TENANTS) / shards
        assert (shard_of_tenant("acme", 8), shard_of_tenant("beta", 8)) == (1, 6), "the hash is the same everywhere"


class TestCalls:
    async def test_a_new_call_goes_to_its_tenants_shard_and_everything_about_it_too(self) -> None:
        link, links = shards_of(3)
        for tenant in TENANTS[:20]:
            name, own = link.new_id(tenant), links[shard_of_tenant(tenant, 3)]
            about: list[Command] = [
                Cancel(name, "cancelled"), Return(name, 1, "declined"), End(name, 1, "done", 1, 1), Status(name),
            ]  # fmt: skip
            for command in about:
                await link.do(command)
            assert own.done[-4:] == about
            link.hold(name, lambda _news: None)
            assert own.held == [name]
            link.forget(name)
            assert not own.held

    async def test_the_shard_learns_the_name_by_which_it_reaches_the_process(self) -> None:
        link, links = shards_of(2)
        taken: list[Any] = []
        for name in (call_id(PROCESS, 1), call_id(process_in(PROCESS, 1), 1)):
            link.send(accept(name, link.process, START), taken.append)
        assert [each.done[0].process for each in links] == [PROCESS, f"{PROCESS}.1"]  # type: ignore[union-attr]
        assert len(taken) == 2
        await link.do(accept(call_id("other.1", 1), "", START))
        assert isinstance(command := links[1].done[-1], Accept)
        assert command.process == "", "no process holds it"

    async def test_a_call_stays_in_its_shard_when_the_number_of_shards_grows(self) -> None:
        """Otherwise a repeated key would be accepted twice."""
        moved = next(tenant for tenant in TENANTS if shard_of_tenant(tenant, 2) != shard_of_tenant(tenant, 3))
        before, _ = shards_of(2)
        name = before.new_id(moved)
        after, links = shards_of(3)
        await after.do(accept(name, after.process, START, tenant=moved))
        assert links[shard_of_tenant(moved, 2)].done

    async def test_a_call_of_a_shard_that_the_pool_has_no_more_fails_and_may_be_repeated(self) -> None:
        """The outbox of a worker keeps its report until an operator raises the number again."""
        link, _ = shards_of(2)
        name, taken = call_id(process_in(PROCESS, 2), 1), list[Any]()
        with pytest.raises(StoreUnavailable):
            await link.do(End(name, 1, "done", 1, 1))
        link.send(Status(name), taken.append)
        await asyncio.sleep(0)
        assert isinstance(taken[0], StoreUnavailable)

    async def test_a_lost_shard_fails_only_its_own_calls(self) -> None:
        link, links = shards_of(2)
        links[1].fails = StoreUnavailable()
        assert await link.do(Status(call_id(PROCESS, 1))) == Done()
        with pytest.raises(StoreUnavailable):
            await link.do(Status(call_id(process_in(PROCESS, 1), 1)))


class TestAllShards:
    @pytest.mark.parametrize("command", [Tick(), Retire("w1"), UseFormat(6), Leave("w1")])
    async def test_what_concerns_no_call_goes_to_each(self, command: Command) -> None:
        link, links = shards_of(3)
        assert await link.do(command) == Done()
        assert [each.done for each in links] == [[command]] * 3
        with pytest.raises(TypeError):
            link.send(command, lambda _outcome: None)

    async def test_it_is_done_in_the_others_if_one_fails_and_a_refusal_is_told(self) -> None:
        link, links = shards_of(3)
        links[0].fails = StoreUnavailable()
        with pytest.raises(StoreUnavailable):
            await link.do(Tick())
        assert links[1].done == links[2].done == [Tick()]
        links[0].fails, links[2].answer = None, Refused("", "unread", "An old process.", 0.0)
        assert await link.do(UseFormat(6)) == links[2].answer

    async def test_a_worker_counts_once_with_its_slots_in_all_shards(self) -> None:
        link, links = shards_of(2)
        links[0].workers[0] = worker("w1", 3, "silent")
        found = {each.worker: each for each in await link.fleet()}
        assert sorted(found) == ["only 0", "only 1", "w1"]
        assert (found["w1"].slots, found["w1"].service_per_s, found["w1"].state) == (6, 600.0, "serving")

    async def test_a_shard_that_does_not_answer_hides_no_worker_of_the_others(self) -> None:
        link, links = shards_of(2)
        links[0].fails = StoreUnavailable()
        assert [each.worker for each in await link.fleet()] == ["w1", "only 1"]
        links[0].fails, links[0].fleet_s = None, 60.0
        began = asyncio.get_running_loop().time()
        assert [each.worker for each in await link.fleet()] == ["w1", "only 1"]
        assert asyncio.get_running_loop().time() - began <= 2.0
        links[0].fleet_s, links[0].fails, links[1].fails = 0.0, StoreUnavailable(), StoreUnavailable()
        with pytest.raises(StoreUnavailable):
            await link.fleet()

    async def test_usage_readers_and_rest_are_of_all(self) -> None:
        link, links = shards_of(2)
        assert [shard for shard, _ in await link.usage(None, 0, 9)] == [0, 1]
        assert [reader.process for reader in await link.readers() or ()] == [PROCESS, f"{PROCESS}.1"]
        links[1].fails = StoreUnavailable()
        assert await link.readers() is None, "one leader does not say it"
        await link.rest()
        assert all(each.rested for each in links)

    async def test_a_launch_of_any_shard_is_taken_and_none_is_lost(self) -> None:
        link, links = shards_of(2)
        for number in (1, 0, 1):
            links[number].launches.put_nowait((f"of {number}", 1))
        assert sorted([await link.launched() for _ in range(3)]) == [("of 0", 1), ("of 1", 1), ("of 1", 1)]

    def test_one_shard_needs_no_link_above_its_own(self) -> None:
        only = ShardLink(0)
        assert combine([only]) is only
