"""A worker without its process: the real HTTP server, executions and agent around a scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from random import Random

import httpx

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.execution_token import ExecutionToken, digest, sign
from dispatcher.model.old_fleet import Lease, Worker
from dispatcher.model.old_invocation import Invocation, Slot, dispatched
from dispatcher.model.old_outcomes import Written
from dispatcher.model.worker_protocol import WorkEvent, WorkOrder
from dispatcher.old_stores.memory.store import MemoryStore
from dispatcher.policies.clocks import Clocks, Share, debit
from dispatcher.policies.tiers import Tier
from dispatcher.worker_client import HttpWorkerClient
from dispatcher.worker_wire import encode_order
from gpu_worker.policies.slo.shedding import Shedder
from gpu_worker.service.agent import Agent
from gpu_worker.service.executions import Executions
from gpu_worker.service.server import make_app
from gpu_worker.service.slo.watch import SloWatch
from headgate.simulator.virtual_time import START, LoopClock
from tests.support.asgi import Call
from tests.support.worker.scripted_engine import MODEL, ScriptedEngine

SECRET = b"sixteen characters and more"
POOL = "default"
WORKER = Worker("w", POOL, "http://w", MODEL, slots=2)


def order(invocation: str = "i", **fields: object) -> WorkOrder:
    known: dict[str, object] = {
        "tenant": "a",
        "invocation": invocation,
        "attempt": 1,
        "slot": 0,
        "model": MODEL,
        "weight": 1.0,
        "tier": Tier.STANDARD,
        "deadline_at": START + 100,
        "prompt": "hello",
        "messages": None,
        "max_tokens": 3,
        "temperature": 1.0,
        "seed": None,
        "stop": (),
        "app": "",
        "stage": 0,
        "interaction": "",
        "cache_salt": "",
    }
    return WorkOrder(**{**known, **fields})  # type: ignore[arg-type]


async def read(lines: AsyncIterator[bytes]) -> list[bytes]:
    return [line async for line in lines]


@dataclass
class Settlements:
    """`away`: how many calls still fail. `done`: execution, input tokens, output tokens."""

    away: int = 0
    tries: int = 0
    done: list[tuple[str, int, int]] = field(default_factory=list)

    async def __call__(
        self, tenant: str, invocation_id: str, attempt: int, *, input_tokens: int, output_tokens: int
    ) -> None:
        self.tries += 1
        if self.away:
            self.away -= 1
            raise StoreUnavailable()
        self.done.append((f"{tenant}/{invocation_id}#{attempt}", input_tokens, output_tokens))


class WorkerHarness:
    def __init__(self, engine: ScriptedEngine | None = None, shedder: Shedder | None = None) -> None:
        self.clock = LoopClock()
        self.engine = engine or ScriptedEngine()
        self.settlements = Settlements()
        watch = None if shedder is None else SloWatch(self.clock, shedder)
        self.executions = Executions(self.engine, WORKER.slots, self.clock, self.settlements, slo_watch=watch)
        self.app = make_app(self.executions, worker_id="w", secret=SECRET, clock=self.clock)
        self.transport = httpx.ASGITransport(self.app)
        self.client = HttpWorkerClient(secret=SECRET, clock=self.clock, transport=self.transport)
        self.store = MemoryStore(self.clock)
        self.stop = asyncio.Event()
        """Set it to drain the agent."""
        self.serving: asyncio.Future[None]
        """The agent's `serve`, if the test runs it."""
        self.agent = Agent(WORKER, self.store, self.executions, self.clock, Random(1))

    async def execute(self, work: WorkOrder, worker: Worker = WORKER) -> list[WorkEvent]:
        return [event async for event in self.client.execute(worker, work)]

    def call(self, work: WorkOrder) -> Call:
        """Return the request as a server sees it: a connection that can stop reading, and break."""
        raw = encode_order(work)
        expires_at = self.clock.now() + 30
        token = ExecutionToken("w", work.tenant, work.invocation, work.attempt, work.slot, expires_at, digest(raw))
        return Call(
            self.app, "POST", "/v1/execute", headers={"authorization": f"Bearer {sign(token, SECRET)}"}, body=raw
        )

    def start(self, work: WorkOrder) -> asyncio.Future[list[bytes]]:
        """Run the order without HTTP; the future has its lines."""
        return asyncio.ensure_future(read(self.executions.run(self.executions.claim(work))))

    async def leased(self, work: WorkOrder) -> Lease:
        """Store a lease as a dispatch does; the agent has joined."""
        now = self.clock.now()
        charged = debit(Clocks(), Share(), 1.0, now, 0.0)
        queued = Invocation(work.tenant, work.invocation, "a", POOL, MODEL, "f", now, work.deadline_at, 1.0, 1)
        running = dispatched(queued, Slot("w", work.slot), charged.charge, now)
        assert await self.store.admit(running, charged, now) is Written.DONE
        return (await self.store.workers(POOL))[0].leases[work.slot]
