"""Load on a gate: calls that arrive at fronts, get a slot, run for a while and end, and workers that report.

Workers return offers that are not begun in time, and report each second, as gpu_worker/service does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from string import ascii_letters

from benchmarks.gate_model.fleet import NETWORK_S, ModelledFleet
from benchmarks.gate_model.requests import ModelledStore
from dispatcher.model.call import CallTerms, TenantConfig
from dispatcher.model.commands import Accept, Attempts, End, Offer, Over, Refused, Report, Return, Waiting
from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.kept import Invocation
from dispatcher.model.requests import Endpoint
from dispatcher.service.link.link import Link
from tests.support.world.network import Host

FULL_MODEL = "full"
REPORT_S = 1.0
NEWS_S = 60.0
COST = 100.0
BURST_S = 5.0
OFFER_S = 2.0
"""A worker returns an attempt that has not begun for so long."""


@dataclass
class Calls:
    """The calls of one front. Times are (begin, seconds)."""

    begun: int = 0
    waits: list[tuple[float, float]] = field(default_factory=list)
    """From `do` to each offer."""
    refusals: list[tuple[float, float]] = field(default_factory=list)
    """From `do` to each refusal."""
    results: Counter[str] = field(default_factory=Counter)
    """By result; a refusal's code is its result. Calls that are not over are missing."""


@dataclass
class Measures:
    """`commands`: (begin, seconds) of each, from `do` to its outcome. `fronts`: the calls of each."""

    commands: list[tuple[float, float]] = field(default_factory=list)
    fronts: dict[str, Calls] = field(default_factory=dict)
    tenants: dict[int, Calls] = field(default_factory=dict)
    """The same calls by tenant's number; only times."""
    runs: list[tuple[float, float]] = field(default_factory=list)
    """When each attempt began and ended on its worker."""

    def of(self, front: str) -> Calls:
        return self.fronts.setdefault(front, Calls())

    @property
    def results(self) -> Counter[str]:
        return sum((calls.results for calls in self.fronts.values()), Counter())


@dataclass(frozen=True)
class Names:
    """Names in the facts; a number follows that of a tenant, and the process's name that of a worker."""

    tenant: str = "tenant-"
    app: str = ""
    model: str = "m"
    worker: str = "worker-"


@dataclass
class Process:
    """A front, with the link that it has to the shard."""

    name: str
    host: Host
    link: Link
    store: ModelledStore


@dataclass
class Worker:
    process: Process
    name: str
    slots: int
    model: str
    live: set[str] = field(default_factory=set)
    """Attempts, as `id#attempt`, that run or have an end without an outcome."""
    unbegun: dict[str, float] = field(default_factory=dict)
    """Attempts that the log holds for it and that have not begun: since when it knows of them (monotonic)."""
    fenced: set[str] = field(default_factory=set)
    """Attempts that it will never begin."""
    done: set[str] = field(default_factory=set)
    """Attempts with an end in the log. An answer that was sent before may still name them."""

    def report(self) -> Report:
        live = tuple(sorted(self.live))
        return Report(self.name, f"http://{self.name}", self.model, self.slots, 8192, 1e3, 1e4, False, 0.0, 0, live)


class Load:
    """`service_s`: how long a call runs on its worker. `durable_bytes`: of the request and of the answer of each call,
    which is then durable and has a key; 0: no call is durable. `weights`: of the first tenants; 1 of the others.
    `rates_per_s`: guarantees of the first tenants, in service units; the burst is that of BURST_S seconds.
    `waiting_max`: items of a tenant's queue.
    """

    def __init__(
        self,
        fleet: ModelledFleet,
        *,
        service_s: float = 1.0,
        order_s: float = NETWORK_S,
        names: Names | None = None,
        durable_bytes: int = 0,
        weights: Sequence[float] = (),
        rates_per_s: Sequence[float] = (),
        waiting_max: int = 10_000,
        deadline_s: float = 300.0,
    ) -> None:
        self._fleet, self._service_s, self._order_s = fleet, service_s, order_s
        self._names, self._weights = names or Names(), weights
        self._rates_per_s = rates_per_s
        self._waiting_max, self._deadline_s = waiting_max, deadline_s
        self._text = "".join(fleet.random.choices(ascii_letters, k=durable_bytes))
        self.measures = Measures()
        self.processes: list[Process] = []
        self.workers: dict[str, Worker] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add_process(self, name: str, slow: float = 1.0) -> Process:
        """Make a front."""
        process = self.new_process(name, slow)
        self.processes.append(process)
        return process

    def new_process(self, name: str, slow: float = 1.0) -> Process:
        """Make a process at which no call arrives. `slow`: factor on its CPU times and on its requests' latency."""
        store = self._fleet.store(slow)
        return Process(name, self._fleet.host(name), self._fleet.link(name, store), store)

    async def add_worker(self, process: Process, slots: int) -> None:
        """Make the process a worker too, and wait until the shard knows it."""
        name = f"{self._names.worker}{process.name}"
        self.workers[name] = worker = Worker(process, name, slots, self._names.model)
        await self._fleet.on(process.name, self._reported(worker))
        process.host.spawn(self._reports(worker))

    async def add_waiting(self, count: int) -> None:
        """Let a durable call of each of `count` tenants wait for a worker that is always full."""
        replica = self._fleet.replica("setup")
        worker = Worker(self.processes[0], "worker-full", 1, FULL_MODEL)
        await replica.commit([worker.report()])
        waiting = [self._accept(f"setup-{number:x}", "", number, FULL_MODEL) for number in range(count)]
        await replica.commit(waiting)
        worker.process.host.spawn(self._reports(worker))

    def arrive(self, process: Process, tenant: int, service_s: float | None = None) -> asyncio.Task[None]:
        """Begin a call of tenant number `tenant` now."""
        runs_s = self._service_s if service_s is None else service_s
        task: asyncio.Task[None] = process.host.spawn(self._call(process, tenant, runs_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self, timeout_s: float) -> None:
        """Wait until all calls are over."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout_s)

    async def _call(self, process: Process, tenant: int, service_s: float) -> None:
        call_id = process.link.new_id()
        calls = self.measures.of(process.name)
        calls.begun += 1
        try:
            calls.results[await self._result(process, tenant, call_id, service_s)] += 1
        except StoreUnavailable:
            calls.results["store_unavailable"] += 1
        finally:
            process.link.forget(call_id)

    async def _result(self, process: Process, tenant: int, call_id: str, service_s: float) -> str:
        began = self._fleet.clock.monotonic()
        await self._create(process, call_id, tenant)
        offered: asyncio.Queue[Offer | Over] = asyncio.Queue()
        process.link.hold(call_id, offered.put_nowait)
        outcome = await process.link.do(self._accept(call_id, process.name, tenant, self._names.model))
        self.measures.commands.append((began, self._fleet.clock.monotonic() - began))
        news = outcome if isinstance(outcome, Offer | Over) else None
        if isinstance(outcome, Waiting):
            news = await _next(offered)
        while isinstance(news, Offer):
            took_s = self._fleet.clock.monotonic() - began
            self.measures.of(process.name).waits.append((began, took_s))
            self.measures.tenants.setdefault(tenant, Calls()).waits.append((began, took_s))
            await self._fleet.clock.sleep(self._order_s)
            result = await self._executed(news, service_s)
            if result:
                return result
            news = await _next(offered)
        if isinstance(outcome, Refused):
            took_s = self._fleet.clock.monotonic() - began
            self.measures.of(process.name).refusals.append((began, took_s))
            return outcome.code if outcome.retry_after_s > 0 else "no_retry_after"
        return news.outcome if news else "no_news"

    async def _executed(self, offer: Offer, service_s: float) -> str:
        """Run the attempt on its worker, which reports its end. Empty: the worker refuses it."""
        worker = self.workers[offer.worker]
        return await self._fleet.on(worker.process.name, self._worked(worker, offer, service_s))

    async def _worked(self, worker: Worker, offer: Offer, service_s: float) -> str:
        attempt = f"{offer.id}#{offer.attempt}"
        if attempt in worker.fenced:
            return ""
        worker.live.add(attempt)
        began = self._fleet.clock.monotonic()
        await self._fleet.clock.sleep(service_s)
        ended = self._fleet.clock.monotonic()
        self.measures.runs.append((began, ended))
        while True:
            try:
                outcome = await worker.process.link.do(
                    End(offer.id, offer.attempt, "done", 40, 30, answer=self._text, first_token_s=0.123)
                )
                break
            except StoreUnavailable:
                await self._fleet.clock.sleep(0.2)
        worker.done.add(attempt)
        worker.live.discard(attempt)
        self.measures.commands.append((ended, self._fleet.clock.monotonic() - ended))
        return outcome.outcome if isinstance(outcome, Over) else type(outcome).__name__

    async def _reports(self, worker: Worker) -> None:
        while True:
            await self._fleet.clock.sleep(REPORT_S * self._fleet.random.uniform(0.9, 1.1))
            await self._reported(worker)

    async def _reported(self, worker: Worker) -> None:
        while True:
            try:
                answer = await worker.process.link.do(worker.report())
            except StoreUnavailable:
                continue
            if isinstance(answer, Attempts):
                return self._give_back(worker, answer)

    def _give_back(self, worker: Worker, answer: Attempts) -> None:
        """Return attempts that have not begun in time: their callers' process is dead or paused."""
        now = self._fleet.clock.monotonic()
        if worker.model == FULL_MODEL:
            return
        waiting = set(answer.held) - worker.live - worker.fenced - worker.done
        worker.unbegun = {attempt: worker.unbegun.get(attempt, now) for attempt in waiting}
        for attempt, since in worker.unbegun.items():
            if now - since >= OFFER_S:
                worker.fenced.add(attempt)
                worker.process.host.spawn(self._returned(worker, attempt))

    async def _returned(self, worker: Worker, attempt: str) -> None:
        call_id, _, number = attempt.rpartition("#")
        while True:
            try:
                await worker.process.link.do(Return(call_id, int(number), "not_begun", worker.name))
                return
            except StoreUnavailable:
                await self._fleet.clock.sleep(0.2)

    async def _create(self, process: Process, call_id: str, tenant: int) -> None:
        """Keep a durable call's request before it is accepted."""
        if not self._text:
            return
        now = self._fleet.clock.now()
        invocation = Invocation(
            id=call_id,
            tenant=f"{self._names.tenant}{tenant}",
            key=f"key-{call_id}",
            pool="default",
            model=self._names.model,
            fingerprint="f" * 64,
            created_at=now,
            deadline_at=now + 300.0,
            endpoint=Endpoint.CHAT,
            body=self._text,
        )
        await process.store.invocations.create(invocation)

    def _accept(self, call_id: str, process: str, tenant: int, model: str) -> Accept:
        """Return an acceptance. Without a process that holds its caller, the call is durable."""
        rate_per_s = self._rates_per_s[tenant] if tenant < len(self._rates_per_s) else 0.0
        return Accept(
            id=call_id,
            floor=0,
            process=process,
            terms=CallTerms(
                tenant=f"{self._names.tenant}{tenant}",
                model=model,
                cost=COST,
                deadline_at=round(self._fleet.clock.now() + self._deadline_s, 3),
                durable=bool(self._text) or not process,
                app=self._names.app,
                interaction="",
            ),
            config=TenantConfig(
                version=1,
                weight=self._weights[tenant] if tenant < len(self._weights) else 1.0,
                rate_per_s=rate_per_s,
                burst=BURST_S * rate_per_s,
                tier="standard",
                waiting_max=self._waiting_max,
            ),
        )


async def _next(offered: asyncio.Queue[Offer | Over]) -> Offer | Over | None:
    with suppress(TimeoutError):
        async with asyncio.timeout(NEWS_S):
            return await offered.get()
    return None
