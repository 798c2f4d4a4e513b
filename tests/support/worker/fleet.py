"""Workers with one real shard and a front of few lines, in virtual time: what becomes of calls whose engine fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from dispatcher.model.commands import Offer, Over, Status
from dispatcher.model.worker_protocol import Finished, WorkRefused
from gpu_worker.engines.interface import EngineError, EngineEvent, WorkOrder
from gpu_worker.service.health.failures import PROBE_TENANT
from tests.support.worker.gate import DecidingGate
from tests.support.worker.harness import WorkerHarness, order
from tests.support.worker.scripted_engine import MODEL, ScriptedEngine
from tests.support.world.virtual_time import START

PROCESS = "pppppppppppp"
DEADLINE_AT = START + 5000
POLL_S = 0.01

Fault = Callable[[WorkOrder, int], EngineError | None]
"""From a request and the number of those that the engine has, to the error that ends it."""


class FaultyEngine(ScriptedEngine):
    """Fails as `fault` says. `asked`: the requests of each tenant."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(token_s=0.01)
        self.fault = fault
        self.asked: Counter[str] = Counter()

    @property
    def probes(self) -> int:
        return self.asked[PROBE_TENANT]

    async def generate(self, request: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
        self.asked[request.terms.tenant] += 1
        await asyncio.sleep(0.001)
        error = self.fault(request, len(self.running))
        if error is not None:
            raise error
        async for event in super().generate(request):
            yield event


@dataclass
class Answer:
    """`attempts`: as the gate counted them. `took_s`: until the caller has its answer."""

    event: Finished | WorkRefused | Over
    attempts: int
    took_s: float

    @property
    def status(self) -> int:
        """The HTTP status of the end; 502 if the gate gave the call up."""
        if isinstance(self.event, WorkRefused):
            return self.event.status
        return 200 if isinstance(self.event, Finished) else 502


@dataclass
class Fleet:
    gate: DecidingGate
    workers: dict[str, WorkerHarness]
    engines: list[FaultyEngine]
    sent: int = 0

    @property
    def engine(self) -> FaultyEngine:
        """The engine of the only worker."""
        (engine,) = self.engines
        return engine

    async def call(self, tenant: str, max_tokens: int = 3) -> Answer:
        """Send a call, follow its offers, and return how it ended."""
        self.sent += 1
        name, began_s = f"{PROCESS}-{self.sent:x}", asyncio.get_running_loop().time()
        outcome = await self.gate.do(
            self.gate.alone.new_call(tenant, 8.0, id=name, process=PROCESS, model=MODEL, deadline_at=DEADLINE_AT)
        )
        attempts = 0
        while not isinstance(outcome, Over):
            if isinstance(outcome, Offer) and outcome.attempt > attempts:
                attempts = outcome.attempt
                work = order(
                    name, attempt=attempts, tenant=tenant, deadline_at=DEADLINE_AT, max_tokens=max_tokens,
                    streamed=False,
                )  # fmt: skip
                last = (await self.workers[outcome.worker].execute(work))[-1]
                if isinstance(last, Finished) or (isinstance(last, WorkRefused) and last.final):
                    return Answer(last, attempts, asyncio.get_running_loop().time() - began_s)
            else:
                await asyncio.sleep(POLL_S)
            outcome = await self.gate.do(Status(name))
        return Answer(outcome, attempts, asyncio.get_running_loop().time() - began_s)

    async def repeat(self, tenant: str, seconds: float, pause_s: float = 0.0) -> list[Answer]:
        """Send one call after the other."""
        until_s, answers = asyncio.get_running_loop().time() + seconds, []
        while asyncio.get_running_loop().time() < until_s:
            answers.append(await self.call(tenant))
            await asyncio.sleep(pause_s)
        return answers


@asynccontextmanager
async def fleet(*faults: Fault, slots: int = 16) -> AsyncIterator[Fleet]:
    """Workers w0, w1 … whose engines have these faults, and which send heartbeats."""
    gate, engines = DecidingGate(), [FaultyEngine(fault) for fault in faults]
    workers = {
        f"w{number}": WorkerHarness(engine, gate=gate, worker=f"w{number}", slots=slots)
        for number, engine in enumerate(engines)
    }
    for worker in workers.values():
        await worker.agent.join()
        worker.serving = asyncio.ensure_future(worker.agent.run())
    try:
        yield Fleet(gate, workers, engines)
    finally:
        for worker in workers.values():
            await worker.executions.health.stop()
            worker.serving.cancel()
            await asyncio.wait({worker.serving})
