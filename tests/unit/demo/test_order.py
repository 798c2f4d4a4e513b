"""The demo's effect, decided by order and counts: the whole service in virtual time, the same on any machine.

Everything is real but the GPU and the processes: the HTTP front, the shard, the worker's server, executions, outbox and
agent, and the modelled engine. A flood of one tenant is accepted before the requests of another.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from dispatcher.model.commands import Report
from dispatcher.model.fleet_secrets import FleetSecrets
from dispatcher.model.tenants import Tenant
from dispatcher.operations.context import Context
from dispatcher.operations.directory import new_key
from dispatcher.operations.pools import Pool, Pools
from dispatcher.shard.settings import ShardSettings
from dispatcher.workers.client import HttpWorkerClient
from functions.http_api.app import make_app
from gpu_worker.engines.interface import EngineEvent, Token, WorkOrder
from gpu_worker.engines.modelled.engine import PROFILE, ModelledEngine
from gpu_worker.policies.fairness.tiered import make_queue
from gpu_worker.service.agent import Agent
from gpu_worker.service.executions.executions import Executions
from gpu_worker.service.executions.outbox import Outbox
from gpu_worker.service.server import make_app as make_worker_app
from tests.support.asgi import Call, Caller, Reply
from tests.support.worker.connections import AsgiConnections
from tests.support.world.in_process import InProcessGate
from tests.support.world.memory_gate import CHAT, MODEL, CountingIds, FakeLauncher
from tests.support.world.memory_store import MemoryStore
from tests.support.world.virtual_time import LoopClock, run

FLOOD, QUIET = "flood", "quiet"
REQUESTS = {FLOOD: 60, QUIET: 6}
TOKENS = 50
SLOTS, BATCH = 8, 4
SECRETS = FleetSecrets("sixteen characters and more")
WORKER = Report("w", "http://w", MODEL, SLOTS, 0, 1.0, 0.0, False, 0.0, 0, ())


@dataclass(eq=False)
class RecordingEngine(ModelledEngine):
    first_tokens: list[str] = field(default_factory=list)
    """The tenant of each request, in the order of their first tokens."""

    async def generate(self, request: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
        async with aclosing(super().generate(request)) as events:
            async for event in events:
                if isinstance(event, Token) and event.output_tokens == 1:
                    self.first_tokens.append(request.terms.tenant)
                yield event


@dataclass(frozen=True)
class Played:
    """`replies`: by tenant. `first_tokens`: tenants in the order of the engine's first tokens."""

    replies: dict[str, list[Reply]]
    first_tokens: list[str]

    def before(self, tenant: str, other: str) -> list[int]:
        """For each request of the tenant: how many requests of the other got their first token before it."""
        places = [place for place, name in enumerate(self.first_tokens) if name == tenant]
        return [self.first_tokens[:place].count(other) for place in places]


async def play(order: str, policy: str) -> Played:
    """Send the flood, then the quiet tenant's requests, before any of them is complete. Wait for all answers."""
    clock, ids = LoopClock(), CountingIds()
    store = MemoryStore(clock)
    shard = InProcessGate(store, clock, FakeLauncher(), ShardSettings(order=order))
    engine = RecordingEngine(
        make_queue(policy),
        model=MODEL,
        profile=replace(PROFILE, batch_max=BATCH),
        monotonic_s=clock.monotonic,
    )
    link = shard.link("worker")
    executions = Executions("w", engine, SLOTS, clock, Outbox(link, clock, Random(2)))
    worker = make_worker_app(executions, worker_id="w", secrets=SECRETS, clock=clock)
    client = HttpWorkerClient(secrets=SECRETS, clock=clock, connections=AsgiConnections(worker))
    front = Context(
        Pools(Pool(shard.link("front"), clock)),
        store=store,
        workers=client,
        launcher=FakeLauncher(),
        clock=clock,
        ids=ids,
    )
    agent = Agent(WORKER, link, executions, clock, Random(1))
    stop = asyncio.Event()
    await engine.start()
    await agent.join()
    serving = asyncio.ensure_future(agent.serve(stop.wait()))
    calls = [call for tenant in REQUESTS for call in await send(front, tenant, await key_of(store, tenant, ids))]
    assert engine.first_tokens.count(FLOOD) <= SLOTS, "the flood is accepted, and most of it waits"
    replies = [await call.finished() for call in calls]
    stop.set()
    await serving
    await engine.stop()
    return Played({FLOOD: replies[: REQUESTS[FLOOD]], QUIET: replies[REQUESTS[FLOOD] :]}, engine.first_tokens)


async def key_of(store: MemoryStore, tenant: str, ids: CountingIds) -> str:
    """Create the tenant and return its API key."""
    await store.put_tenant(Tenant(tenant), expected_version=None)
    key, record = new_key(tenant, ids.secret())
    await store.put_key(record)
    return key


async def send(front: Context, tenant: str, key: str) -> list[Call]:
    """Send a tenant's requests one after another: each is accepted before the next is sent."""
    app, calls = make_app(), []
    app.state.context = front
    for _ in range(REQUESTS[tenant]):
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": TOKENS}
        calls.append(Caller(app, key).start("POST", CHAT, body))
        await asyncio.sleep(0.001)
    return calls


@pytest.mark.parametrize(("order", "policy"), [("fcfs", "fcfs"), ("bwfq", "vtc"), ("bwfq", "tiered:vtc")])
def test_every_request_is_answered(order: str, policy: str) -> None:
    played = run(play(order, policy))
    for tenant, replies in played.replies.items():
        assert [reply.status for reply in replies] == [200] * REQUESTS[tenant]
        assert {reply.json()["usage"]["completion_tokens"] for reply in replies} == {TOKENS}
    assert Counter(played.first_tokens) == REQUESTS


def test_first_come_first_served_serves_the_whole_flood_first() -> None:
    assert run(play("fcfs", "fcfs")).before(QUIET, FLOOD) == [REQUESTS[FLOOD]] * REQUESTS[QUIET]


@pytest.mark.parametrize("policy", ["vtc", "tiered:vtc"])
def test_headgate_serves_the_quiet_tenant_by_turns(policy: str) -> None:
    """At most these of the flood come before the k-th quiet request: those that held a slot when the quiet tenant
    arrived, and one for each of its k - 1 earlier requests (the weights are equal)."""
    before = run(play("bwfq", policy)).before(QUIET, FLOOD)
    assert all(count <= SLOTS + number for number, count in enumerate(before))
