"""Scale-in with real processes: one worker retires, its stream ends, and then its process gets SIGTERM.

The gate, the front and three workers are processes, and the sweep's parts run in the test. The service of the workers
is a stand-in for ECS, because moto starts no task and lacks UpdateTaskProtection. It stops the busiest worker that is
not protected.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from dispatcher.model.fleet import FleetLoad, ServiceCount
from dispatcher.operations.scaling import Scaling
from dispatcher.operations.worker_count import ScaleSettings
from dispatcher.policies.clocks import Share
from dispatcher.ports import GateLink
from dispatcher.processes.bootstrap import NoLauncher, RealClock, make_links
from dispatcher.service.load_watch import LoadWatch
from dispatcher.settings.config import load_config
from headgate.local.seed import CREDENTIALS, TABLE, make_table, make_tenants, table_store
from headgate.local.stack import base_environment
from headgate.machine.fleet import WORKER, LocalFleet, Member
from headgate.machine.options import StackOptions
from headgate.machine.places import front_ports
from headgate.machine.processes import Children
from tests.support.hang_guard import HANG_S

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]

MODEL = "headgate-modelled"
WORKERS, SLOTS = 3, 2
LONG, SHORT = 1500, 300


class AtOnce(ScaleSettings):
    hold_s = 0.0


@dataclass
class Service:
    """dispatcher.model.fleet.FleetScaler, over the fleet's worker processes."""

    fleet: LocalFleet
    watch: LoadWatch
    desired: int = WORKERS
    kept: list[set[str]] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)

    async def count(self) -> ServiceCount:
        return ServiceCount(self.desired, len(self.fleet.urls(WORKER)))

    async def keep(self, workers: Sequence[str], leaver: str = "") -> None:
        self.kept.append(set(workers))

    async def set(self, workers: int) -> None:
        self.desired = workers
        busiest_first = sorted((await self.watch.load()).workers, key=lambda each: -each.running)
        name = next(each.worker for each in busiest_first if each.worker not in self.kept[-1])
        self.stopped.append(name)
        await self._member(name).child.stop(HANG_S)

    def _member(self, name: str) -> Member:
        number = int(name.rpartition("-")[2])
        return next(each for each in self.fleet.members if (each.role, each.number) == (WORKER, number))


@dataclass(frozen=True)
class Stack:
    client: AsyncOpenAI
    service: Service
    watch: LoadWatch
    link: GateLink

    async def load(self) -> FleetLoad:
        return await self.watch.load()

    async def stream(self, tokens: int) -> int:
        """Stream an answer. Return its number of tokens."""
        answer = await self.client.completions.create(
            model=MODEL, prompt="hello", max_tokens=tokens, stream=True, stream_options={"include_usage": True}
        )
        return sum([chunk.usage.completion_tokens async for chunk in answer if chunk.usage is not None])

    async def until_running(self, count: int) -> None:
        while sum(each.running for each in (await self.load()).workers) < count:
            await asyncio.sleep(0.1)


@asynccontextmanager
async def running(home: Path) -> AsyncIterator[Stack]:
    async with AsyncExitStack() as ends:
        children = Children(f"mark-{home.name}", home / "logs", grace_s=3.0)
        ends.push_async_callback(children.stop)
        moto = await children.spawn_python("moto", ["-m", "headgate.local.moto_server"], environment=base_environment())
        url = str((await moto.announcement(HANG_S))["url"])
        await make_table(url)
        variables = {
            **CREDENTIALS,
            "AWS_ENDPOINT_URL": url,
            "AWS_EC2_METADATA_DISABLED": "true",
            "HEADGATE_TABLE": TABLE,
            "HEADGATE_WORKER_SECRET": "secret-of-the-tests-0123456789",
        }
        store = table_store(url)
        ends.push_async_callback(store.close)
        keys = await make_tenants(store, {"acme": Share()}, 1000)
        options = StackOptions(engine="modelled", workers=WORKERS, slots=SLOTS, home=home, start_timeout_s=HANG_S)
        fleet = LocalFleet(options, children, {**base_environment(), **variables}, "default")
        ends.push_async_callback(fleet.stop, 3.0)
        await fleet.start(front_ports("127.0.0.1", 0, 1))
        config = load_config(variables).of_pool("default")
        link = make_links(config, store, RealClock(), NoLauncher())[0]
        ends.push_async_callback(link.rest)
        watch = LoadWatch(store.log(config.pool), config.shard_settings(), RealClock())
        client = AsyncOpenAI(base_url=f"{fleet.urls('front')[0]}/v1", api_key=keys["acme"], max_retries=0)
        ends.push_async_callback(client.close)
        yield Stack(client, Service(fleet, watch), watch, link)


def scaling(stack: Stack) -> Scaling:
    """A sweep without memory, as after the end of its sandbox."""
    return Scaling(stack.service, stack.link, AtOnce(workers_min=1, workers_max=WORKERS), RealClock())


async def test_a_worker_retires_before_it_is_stopped(tmp_path: Path) -> None:
    """First the load returns and it serves again; then the load stays away, and it is stopped when its stream ends."""
    async with asyncio.timeout(HANG_S), running(tmp_path) as stack:
        await _serves_again_if_the_load_returns(stack)
        long = [asyncio.create_task(stack.stream(LONG)) for _ in range(WORKERS)]
        await stack.until_running(WORKERS)
        assert [each.running for each in (await stack.load()).workers] == [1, 1, 1]

        assert not (await scaling(stack).sweep(await stack.load())).problem
        (leaver,) = [each.worker for each in (await stack.load()).workers if each.is_retiring]
        assert stack.service.stopped == [], "its stream runs"

        late = [asyncio.create_task(stack.stream(SHORT)) for _ in range(2)]
        await stack.until_running(WORKERS + 2)
        loads = {each.worker: each.running for each in (await stack.load()).workers}
        assert loads.pop(leaver) == 1, "it got no new work"
        assert list(loads.values()) == [2, 2]

        while not stack.service.stopped:
            load = await stack.load()
            of_leaver = next((each.running for each in load.workers if each.worker == leaver), 0)
            await scaling(stack).sweep(load)
            assert not (of_leaver and stack.service.stopped), "stopped while its stream ran"
            await asyncio.sleep(0.2)
        assert stack.service.stopped == [leaver]
        assert stack.service.kept[-1] == set(loads)
        assert await asyncio.gather(*long, *late) == [LONG] * WORKERS + [SHORT] * 2
        assert leaver not in {each.worker for each in (await stack.load()).workers}


async def _serves_again_if_the_load_returns(stack: Stack) -> None:
    long = [asyncio.create_task(stack.stream(LONG)) for _ in range(WORKERS)]
    await stack.until_running(WORKERS)
    await scaling(stack).sweep(await stack.load())
    assert [each.is_retiring for each in (await stack.load()).workers].count(True) == 1

    more = [asyncio.create_task(stack.stream(SHORT)) for _ in range(2 * SLOTS)]
    await stack.until_running(WORKERS * SLOTS - 1)
    await scaling(stack).sweep(await stack.load())
    assert not any(each.is_retiring for each in (await stack.load()).workers), "all slots of the others are taken"
    assert await asyncio.gather(*long, *more) == [LONG] * WORKERS + [SHORT] * 2 * SLOTS
    assert stack.service.stopped == []
