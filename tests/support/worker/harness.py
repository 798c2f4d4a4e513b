"""A worker without its process: its real server, executions, outbox and agent around a scripted engine and gate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from dispatcher.model.call import CallTerms
from dispatcher.model.commands import Offer, Report
from dispatcher.model.fleet_secrets import EXECUTION_TOKEN_TTL_S, ExecutionToken, FleetSecrets, digest, sign
from dispatcher.model.worker_protocol import WorkEvent, WorkOrder
from dispatcher.workers.client import HttpWorkerClient
from dispatcher.workers.wire import encode_order
from gpu_worker.policies.shedding import Shedder
from gpu_worker.service.agent import Agent, AgentSettings
from gpu_worker.service.executions.executions import Executions
from gpu_worker.service.executions.outbox import Outbox
from gpu_worker.service.executions.outbox_journal import Journal
from gpu_worker.service.server import make_app
from gpu_worker.service.slo_watch import SloWatch
from tests.support.asgi import Call
from tests.support.attempts import streamed
from tests.support.worker.connections import AsgiConnections
from tests.support.worker.gate import ScriptedGate
from tests.support.worker.scripted_engine import MODEL, ScriptedEngine
from tests.support.world.virtual_time import START, LoopClock

SECRETS = FleetSecrets("sixteen characters and more")
SECRET = SECRETS.signing
SLOTS = 2
IDENTITY = Report("w", "http://w", MODEL, SLOTS, 1000, 1.0, 0.0, False, 0.0, 0, ())


def order(invocation: str = "i", **fields: object) -> WorkOrder:
    """Return an order with these fields of its own and of its terms."""
    terms = CallTerms("a", MODEL, 0.0, START + 100, False, "", "")
    terms = terms._replace(**{name: fields.pop(name) for name in terms._fields if name in fields})  # type: ignore[arg-type]
    known: dict[str, object] = {"attempt": 1, "body": {"prompt": "hello"}, "max_tokens": 3, "streamed": True}
    return WorkOrder(**{"terms": terms, "invocation": invocation, **known, **fields})  # type: ignore[arg-type]


def offer(work: WorkOrder, worker: str = "w") -> Offer:
    return Offer(work.invocation, work.attempt, worker, "http://w", 0)


async def read(lines: AsyncIterator[bytes]) -> list[bytes]:
    return [line async for item in lines for line in item.splitlines(keepends=True)]


class WorkerHarness:
    """Each order that it sends was offered by its gate before."""

    def __init__(
        self,
        engine: ScriptedEngine | None = None,
        shedder: Shedder | None = None,
        journal: Journal | None = None,
        gate: ScriptedGate | None = None,
        *,
        worker: str = "w",
        slots: int = SLOTS,
    ) -> None:
        self.worker = worker
        self.clock = LoopClock()
        self.engine = engine or ScriptedEngine()
        self.gate = gate or ScriptedGate()
        self.outbox = Outbox(self.gate, self.clock, Random(1), journal)
        watch = None if shedder is None else SloWatch(self.clock, shedder)
        self.executions = Executions(worker, self.engine, slots, self.clock, self.outbox, slo_watch=watch)
        self.app = make_app(self.executions, worker_id=worker, secrets=SECRETS, clock=self.clock)
        self.client = HttpWorkerClient(secrets=SECRETS, clock=self.clock, connections=AsgiConnections(self.app))
        self.agent = Agent(
            IDENTITY._replace(worker=worker, slots=slots), self.gate, self.executions, self.clock, Random(1)
        )
        self.stop = asyncio.Event()
        """Set it to drain the agent."""
        self.serving: asyncio.Future[None]
        """The agent's `serve`, if the test runs it."""

    async def execute(self, work: WorkOrder, worker: str = "") -> list[WorkEvent]:
        """Send the order over HTTP, and return its events."""
        self.gate.offer(work.invocation, work.attempt)
        return [event async for event in streamed(self.client, offer(work, worker or self.worker), work)]

    def call(self, work: WorkOrder) -> Call:
        """Return the request as a server sees it: a connection that can stop reading, and break."""
        self.gate.offer(work.invocation, work.attempt)
        raw = encode_order(work)
        headers = {"authorization": f"Bearer {sign(self.token(work, raw), SECRET)}"}
        return Call(self.app, "POST", "/v1/execute", headers=headers, body=raw)

    def token(self, work: WorkOrder, raw: bytes = b"") -> ExecutionToken:
        expires_at = self.clock.now() + EXECUTION_TOKEN_TTL_S
        return ExecutionToken(self.worker, work.invocation, work.attempt, expires_at, digest(raw))

    def lines(self, work: WorkOrder) -> AsyncGenerator[bytes, None]:
        """Run the order without HTTP."""
        self.gate.offer(work.invocation, work.attempt)
        return self.executions.run(self.token(work), work)

    def start(self, work: WorkOrder) -> asyncio.Future[list[bytes]]:
        """Run the order without HTTP; the future has its lines."""
        return asyncio.ensure_future(read(self.lines(work)))


SETTINGS = AgentSettings()
HEARTBEAT_S = 1.2 * SETTINGS.heartbeat_s
"""The longest time between two heartbeats."""
LONG = order(max_tokens=900, deadline_at=START + 1000)


@asynccontextmanager
async def serving(harness: WorkerHarness) -> AsyncIterator[WorkerHarness]:
    """Join and serve. `harness.stop` is the signal; `harness.serving` then drains."""
    await harness.agent.join()
    harness.serving = asyncio.ensure_future(harness.agent.serve(harness.stop.wait()))
    try:
        yield harness
        assert harness.stop.is_set() or not harness.serving.done(), "the heartbeats ended"
    finally:
        harness.serving.cancel()
        await asyncio.wait({harness.serving})


async def drained(harness: WorkerHarness) -> None:
    harness.stop.set()
    await harness.serving
