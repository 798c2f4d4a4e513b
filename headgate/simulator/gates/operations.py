"""The production gate in virtual time: submit, drain, execute, settle and sweep over the store in memory.

Its event loop is stepped from outside, to the next time at which the loop or the engine has something to do. Tenants'
keys are made and looked up as in production; a worker sends heartbeats, leases its slots and is swept. Only the
worker's HTTP is left out: an execution is a future that the simulated engine completes.

It costs a few hundred microseconds per request, also with thousands of slots or tenants.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import replace
from typing import Any

from dispatcher.model.errors import AnsweredError, DeadlineExceeded, Refused
from dispatcher.model.old_fleet import Worker
from dispatcher.model.old_outcomes import Known
from dispatcher.model.requests import Request
from dispatcher.model.tenants import Tenant
from dispatcher.model.worker_protocol import Finished, Started, Token, WorkEvent, WorkOrder, WorkRefused
from dispatcher.old_operations import tenants as tenants_operations
from dispatcher.old_operations.answer import answer
from dispatcher.old_operations.context import Context, GateSettings
from dispatcher.old_operations.directory import Directory
from dispatcher.old_operations.reap import sweep
from dispatcher.old_operations.submit import Submission, submit
from dispatcher.old_stores.memory.store import MemoryStore
from dispatcher.policies.service import ServiceFunction
from dispatcher.policies.tiers import Tier
from headgate.simulator.gates.interface import Downstream
from headgate.simulator.gates.spec import HEARTBEAT_S, SWEEP_S, GateSpec
from headgate.simulator.requests import SimRequest
from headgate.simulator.virtual_time import START, LoopClock, VirtualTimeLoop
from headgate.workloads.traces.rows import TOKENS_MAX

POOL = "default"
MODEL = "simulated"
ALIVE_S = 10.0
EARLY_END_CODES = {"dropped": "preempted", "exhausted": "preempted_too_often"}
"""The worker's code for each reason for which the paged engine ends a request early."""
KEPT_S = 600.0
"""How long ended invocations are kept. No caller asks for them again, and a long run must not keep them all."""


class OperationsGate:
    def __init__(self, spec: GateSpec, service: ServiceFunction, downstream: Downstream) -> None:
        self._spec = spec
        self._downstream = downstream
        self._loop = VirtualTimeLoop()
        clock = LoopClock()
        self._store = MemoryStore(clock, retention_s=KEPT_S)
        self._context = Context(
            store=self._store,
            directory=Directory(self._store, clock, spec.order),
            workers=self,
            launcher=_NoLauncher(),
            clock=clock,
            ids=_CountedIds(),
            settings=GateSettings(deadline_s=spec.deadline_s),
            service=service,
        )
        self._now_s = 0.0
        self._keys: dict[str, str] = {}
        self._held: dict[str, SimRequest] = {}
        self._running: dict[str, asyncio.Future[None]] = {}
        self._live: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: BaseException | None = None
        self._spawn(self._run_worker())
        self._run_to(0.0)

    # ── SimulatedGate ────────────────────────────────────────────────────────────────────────────────────────────────

    def arrive(self, request: SimRequest, now_s: float) -> None:
        self._run_to(now_s)
        self._held[request.request_id] = request
        self._spawn(self._serve(request))
        self._run_to(now_s)

    def ended(self, request: SimRequest, now_s: float) -> None:
        self._run_to(now_s)
        self._running[request.request_id].set_result(None)
        self._run_to(now_s)

    def next_s(self) -> float:
        return max(self._now_s, self._loop.next_due() - START)

    def advance(self, until_s: float) -> None:
        self._run_to(until_s)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _run_to(self, now_s: float) -> None:
        self._now_s = now_s
        self._loop.run_to(START + now_s)
        if self._failed is not None:
            raise self._failed

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failed = task.exception()

    # ── A caller, from its request to the last token ───────────────────────────────────────────────────────────────

    async def _serve(self, request: SimRequest) -> None:
        try:
            await self._call(request)
        except AnsweredError as error:
            if request.rejected is None:  # else the engine refused or dropped it, which is reported already
                request.rejected = _reason(error)
                self._downstream.reject(request)
        finally:
            del self._held[request.request_id]

    async def _call(self, request: SimRequest) -> None:
        tenant = await self._context.directory.tenant_of(await self._key_of(request.tenant))
        submission = Submission(
            tenant=tenant,
            request=_gate_request(request),
            id=_invocation_id(request.request_id),
            deadline_s=self._spec.deadline_s,
            keep_body=False,
        )
        accepted = await submit(self._context, submission)
        if isinstance(accepted, Known):
            raise RuntimeError(f"request {request.request_id!r} came twice")
        async for _ in answer(self._context, submission, accepted):
            pass

    async def _key_of(self, name: str) -> str:
        """Return the API key of the tenant; create the tenant at its first request. Its name at the gate is a number,
        because the gate accepts fewer names than a workload."""
        if name not in self._keys:
            spec, number = self._spec.tenant(name), f"t{len(self._keys):06d}"
            tier = spec.tier or Tier.STANDARD
            tenant = Tenant(number, number, POOL, spec.share, tier, None, spec.queue_max, max_tokens_max=TOKENS_MAX)
            context = self._context
            self._keys[name] = await tenants_operations.create(context.store, context.ids, context.clock, tenant)
        return self._keys[name]

    # ── The worker ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def execute(self, worker: Worker, order: WorkOrder) -> AsyncGenerator[WorkEvent, None]:
        """ports.WorkerClient. Yields the first event and the last, which are all that a settlement needs."""
        number = order.invocation.lstrip("0") or "0"
        request = self._held[number]
        if not self._downstream.dispatch(request, self._now_s):
            yield WorkRefused(400, request.rejected or "refused", "The engine refused the request.")
            return
        finished = self._running[number] = self._loop.create_future()
        self._live.add(order.execution)
        try:
            yield Started(request.arrival.input_tokens)
            await finished
        finally:
            del self._running[number]
            self._live.discard(order.execution)
        if request.rejected is not None:
            yield Token("", request.generated_tokens)
            yield WorkRefused(503, EARLY_END_CODES[request.rejected], "The engine ended the request early.")
            return
        yield Finished("length", request.arrival.input_tokens, request.arrival.output_tokens)

    async def _run_worker(self) -> None:
        """Register the worker, then send its heartbeats, and sweep the pool, as long as the loop is stepped."""
        worker = Worker("w", POOL, "http://simulated", MODEL, self._spec.slots, alive_until=START + ALIVE_S)
        seated = await self._store.register(worker)
        if seated is None:
            raise RuntimeError("the pool is full though it has no workers")
        for heartbeat in itertools.count(1):
            await asyncio.sleep(max(0.0, START + heartbeat * HEARTBEAT_S - self._loop.time()))
            await self._store.heartbeat(self._as_now(seated))
            if heartbeat % (SWEEP_S // HEARTBEAT_S) == 0:
                await sweep(self._context, POOL)

    def _as_now(self, worker: Worker) -> Worker:
        now = self._loop.time()
        rate = self._downstream.service_per_s(now - START)
        return replace(worker, alive_until=now + ALIVE_S, live=frozenset(self._live), service_per_s=rate)


def _invocation_id(number: str) -> str:
    """Pad the number: a queue is ordered by it within a millisecond."""
    return number.zfill(12)


def _gate_request(request: SimRequest) -> Request:
    """Make the gate's request, with one byte of prompt for each token; the worker counts one token for each byte."""
    arrival = request.arrival
    prompt, max_tokens = "x" * arrival.input_tokens, max(1, arrival.output_tokens)
    return Request(MODEL, False, prompt, None, max_tokens, 1.0, None, ())


def _reason(error: AnsweredError) -> str:
    """Return the value of SimRequest.rejected. Raises an error that is no refusal: it is a defect."""
    if isinstance(error, Refused):
        return "full"
    if isinstance(error, DeadlineExceeded):
        return "timeout"
    raise error


class _CountedIds:
    """ports.Ids. Keys need not be secret here."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self) -> str:
        return f"id-{next(self._numbers)}"

    def secret(self) -> str:
        return f"{next(self._numbers):012d}" + "s" * 32


class _NoLauncher:
    """ports.Launcher. Every caller here keeps its connection."""

    async def launch(self, tenant: str, invocation_id: str, attempt: int) -> None:
        raise RuntimeError("no invocation here is detached from its caller")
