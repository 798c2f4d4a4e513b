"""A storm over a gate in virtual time: everything that may go wrong, drawn from one seed, and the books kept meanwhile.

Production code, several dispatcher processes, one table that fails before or after it applied, pauses at every request,
workers that fail and die, callers that leave, messages that come often and late. The weather turns fair at CALM_S: from
then on nothing fails any more, and what is left must come to its end.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from dispatcher.model.errors import AnsweredError, StoreUnavailable
from dispatcher.model.old_fleet import Worker
from dispatcher.model.old_invocation import Invocation
from dispatcher.model.old_outcomes import Known, Queued, Settled, Submitted, Written
from dispatcher.model.tenants import Tenant
from dispatcher.old_operations.answer import answer, result_of, wait_or_detach
from dispatcher.old_operations.context import Context
from dispatcher.old_operations.execute import Collected, execute_detached
from dispatcher.old_operations.reap import sweep
from dispatcher.old_operations.submit import Submission, submit
from dispatcher.old_stores.memory.store import MemoryStore
from dispatcher.policies.clocks import Debit, Share, Step
from headgate.simulator.virtual_time import LoopClock
from tests.support.gate.memory_gate import POOL, CountingIds, FakeLauncher, Gate
from tests.support.gate.story import asked, kept
from tests.support.gate.worker_client import FULL, UNREACHABLE, WELL, Act, ScriptedWorkers, dies_after, refuses

CALM_S = 30.0
SWEEP_S = 10.0
HEARTBEAT_S = 2.0
ALIVE_S = 10.0
WAITING_MAX = 4
TENANTS = {"a": Share(), "b": Share(weight=3.0), "owed": Share(rate_per_s=20.0, burst=100.0)}
TROUBLE = [UNREACHABLE, FULL, dies_after(0), dies_after(2), refuses(400), refuses(500), Act(aborts_after=1)]
SLOW, LONG = Act(token_s=2.0), Act(token_s=5.0)

Key = tuple[str, str]


@dataclass(frozen=True)
class Weather:
    """How bad it gets. Rates between 0 and 1."""

    seed: int
    processes: int = 2
    arrivals: int = 12
    table_fails: float = 0.0
    """Of requests; half of them after they were applied."""
    pause_s: float = 0.0
    """Longest wait before and after a request is applied."""
    workers_fail: float = 0.0
    callers_leave: float = 0.0
    worker_dies: bool = False


class Books(MemoryStore):
    """The store, and beside it what was accepted and how it ended, noted where it is applied: replies may be lost."""

    def __init__(self, clock: LoopClock) -> None:
        super().__init__(clock)
        self.accepted: dict[Key, Invocation] = {}
        self.ends: defaultdict[Key, list[Invocation]] = defaultdict(list)
        self.longest_queue = 0

    async def admit(self, invocation: Invocation, debit: Debit, now: float) -> Written:
        written = await super().admit(invocation, debit, now)
        return self._accepted(invocation, written)

    async def enqueue(self, invocation: Invocation, lift: Step | None, waiting_max: int) -> Written:
        def apply() -> Written:
            written = self._invocations.enqueue(invocation, lift, waiting_max, self._clock.now())
            waiting = self._invocations.queue(invocation.queue).waiting
            self.longest_queue = max(self.longest_queue, waiting if written is Written.DONE else 0)
            return written

        return self._accepted(invocation, await self._request("enqueue", apply))

    async def settle(self, ended: Invocation, tat: Step, vft: Step) -> Settled:
        return await self._request("settle", lambda: self._ended(ended, self._invocations.settle(ended, tat, vft)))

    async def drop(self, ended: Invocation) -> Settled:
        return await self._request("drop", lambda: self._ended(ended, self._invocations.drop(ended)))

    def everything(self) -> list[Invocation]:
        return list(self._invocations._invocations.values())

    def _accepted(self, invocation: Invocation, written: Written) -> Written:
        if written is Written.DONE:
            self.accepted[invocation.tenant, invocation.id] = invocation
        return written

    def _ended(self, invocation: Invocation, settled: Settled) -> Settled:
        if settled is Settled.SETTLED:
            self.ends[invocation.tenant, invocation.id].append(invocation)
        return settled


@dataclass
class FlakyTable:
    """Faults hook: pauses and failures until the calm."""

    weather: Weather
    random: Random
    clock: LoopClock
    calm_at: float
    trace: list[tuple[float, str]] = field(default_factory=list)

    async def before(self, operation: str) -> None:
        self.trace.append((self.clock.now(), operation))
        await self._trouble()

    async def after(self, operation: str) -> None:
        await self._trouble()

    async def _trouble(self) -> None:
        if self.clock.now() >= self.calm_at:
            return
        if self.weather.pause_s:
            await asyncio.sleep(self.random.random() * self.weather.pause_s)
        if self.random.random() < self.weather.table_fails / 2:
            raise StoreUnavailable()


@dataclass
class Storm:
    weather: Weather
    random: Random
    gate: Gate
    store: Books
    calm_at: float
    answered: dict[Key, list[Collected | AnsweredError | None]] = field(default_factory=lambda: defaultdict(list))
    """The answers to callers; None for one that was detached."""
    table: FlakyTable | None = None
    reaped: int = 0
    consumed: Counter[tuple[str, str, int]] = field(default_factory=Counter)

    async def blow(self) -> None:
        """Run until each accepted invocation has ended and each caller has an answer."""
        self.table = FlakyTable(self.weather, self.random, self.gate.clock, self.calm_at)
        self.store.faults = self.table
        around = [asyncio.ensure_future(work) for work in (self._heartbeats(), self._sweeps(), self._consumer())]
        callers = [asyncio.ensure_future(self._caller(number)) for number in range(self.weather.arrivals)]
        _, hanging = await asyncio.wait(callers, timeout=1000)
        assert not hanging, "a caller was never answered"
        await asyncio.sleep(max(0.0, self.calm_at - self.gate.clock.now()) + 100)
        for task in around:
            assert not task.done(), task
            task.cancel()
        await asyncio.wait(around)
        await self.gate.quiet()

    async def _caller(self, number: int) -> None:
        draw = self.random
        await asyncio.sleep(draw.random() * CALM_S * 0.7)
        context = draw.choice(self.gate.contexts)
        tenant = draw.choice(sorted(TENANTS))
        name = f"{number}" if draw.random() < 0.8 else f"{draw.randrange(self.weather.arrivals)}"
        asking = Submission(
            tenant=Tenant(tenant, tenant, share=TENANTS[tenant], queue_items_max=WAITING_MAX),
            request=asked(max_tokens=3),
            id=name,
            deadline_s=draw.choice([3.0, 10.0, 40.0]),
            keep_body=draw.random() < 0.4,
            keep_answer=True,
        )
        try:
            accepted = await submit(context, asking)
        except AnsweredError as error:
            self.answered[tenant, name].append(error)
            return
        call = asyncio.ensure_future(self._answer(context, asking, accepted))
        if not asking.keep_body and draw.random() < self.weather.callers_leave:  # an invoke has no connection to close
            await asyncio.wait({call}, timeout=draw.random() * 3)
            call.cancel()
        await asyncio.wait({call})
        if not call.cancelled():
            self.answered[tenant, name].append(call.result())

    async def _answer(
        self, context: Context, asking: Submission, accepted: Submitted
    ) -> Collected | AnsweredError | None:
        collected = Collected()
        try:
            if isinstance(accepted, Known):
                await result_of(context, accepted)
                return None
            if asking.keep_body and isinstance(accepted, Queued):
                running = await wait_or_detach(context, accepted.invocation, 1.0)
                if running is None:
                    return None
                accepted = running
            async for event in answer(context, asking, accepted, kept):
                collected.note(event)
        except AnsweredError as error:
            return error
        return collected

    async def _heartbeats(self) -> None:
        """Workers beat whatever the weather; one may be killed, and its successor takes work."""
        dies_at = self.gate.clock.now() + self.random.random() * CALM_S if self.weather.worker_dies else None
        while True:
            now = self.gate.clock.now()
            for worker in self.store._seats.workers(POOL):
                if dies_at is not None and now >= dies_at and worker.id == "w0":
                    self.gate.workers.dead.add("w0")
                if worker.id not in self.gate.workers.dead:
                    self.store._seats.heartbeat(self._as_now(worker, now))
            await asyncio.sleep(HEARTBEAT_S)

    def _as_now(self, worker: Worker, now: float) -> Worker:
        live = frozenset(name for name, on in self.gate.workers.live.items() if on == worker.id)
        return replace(worker, alive_until=now + ALIVE_S, live=live)

    async def _sweeps(self) -> None:
        """Two of them, which overlap."""
        while True:
            await asyncio.sleep(SWEEP_S)
            sweeps = [sweep(context, POOL) for context in self.gate.contexts[:2]]
            for outcome in await asyncio.gather(*sweeps, return_exceptions=True):
                if isinstance(outcome, dict):
                    self.reaped += outcome["reaped"]
                else:
                    assert isinstance(outcome, StoreUnavailable), outcome
            self._check_lines()

    async def _consumer(self) -> None:
        """Messages come up to five times, in any order, to any process."""
        running: set[asyncio.Task[Any]] = set()
        while True:
            await asyncio.sleep(0.2)
            for message in self.gate.launcher.launched:
                if self.consumed[message] < 5 and self.random.random() < 0.5:
                    self.consumed[message] += 1
                    context = self.random.choice(self.gate.contexts)
                    running.add(asyncio.ensure_future(self._consume(context, message)))
            for task in [task for task in running if task.done()]:
                running.discard(task)
                task.result()

    async def _consume(self, context: Context, message: tuple[str, str, int]) -> None:
        try:
            await execute_detached(context, *message, lambda _: kept)
        except StoreUnavailable:
            self.consumed[message] -= 1  # it stays in its queue

    def _check_lines(self) -> None:
        for tenant in TENANTS:
            queue = self.store._invocations.queue(tenant)
            assert queue.reserved >= 0.0
            assert queue.spent >= 0.0


async def storm(weather: Weather) -> Storm:
    clock = LoopClock()
    store = Books(clock)
    draw = Random(weather.seed)
    workers = ScriptedWorkers(store, clock)
    for _ in range(weather.arrivals * 2):
        is_trouble = draw.random() < weather.workers_fail
        workers.acts.append(draw.choice(TROUBLE) if is_trouble else draw.choice([WELL, WELL, SLOW, LONG]))
    gate = Gate(clock, store, workers, FakeLauncher(), CountingIds())
    for tenant, share in TENANTS.items():
        await gate.add_tenant(tenant, share, queue_items_max=WAITING_MAX)
    for name in ("w0", "w1"):
        await gate.add_worker(name, slots=2, alive_s=ALIVE_S)
    for _ in range(weather.processes):
        gate.process()
    return Storm(weather, draw, gate, store, clock.now() + CALM_S)
