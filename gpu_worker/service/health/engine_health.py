"""Decides what the failures of requests mean for the worker: nothing, fewer slots, or no new work until it is well.

    a request fails ──▶ probe ──▶ well: the request was at fault
                                  refused too: the engine is overloaded, and the worker offers fewer slots until
                                  probes beside its requests are taken again (slot_limit.py)
                                  fails twice too: the engine is sick, and the worker drains until a probe succeeds

One probe runs at a time. After a probe that succeeded, further failures of the same tenants start no other for EVERY_S,
but the failure of another tenant does at once. So one tenant's bad requests cost the engine one token a second, and
no number of them takes a slot from other tenants.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from math import inf

from dispatcher.model.invocation import ATTEMPTS_MAX
from dispatcher.model.worker_protocol import Finished, WorkOrder, WorkRefused
from dispatcher.ports import Clock
from gpu_worker.engines.interface import Engine, EngineError
from gpu_worker.service.endings import OVERLOADED_RETRY_S
from gpu_worker.service.health.failed_calls import FailedCall, FailedCalls
from gpu_worker.service.health.failing_tenants import FailingTenants
from gpu_worker.service.health.kinds import OVERLOADED, Kind, kind_of, overload_status
from gpu_worker.service.health.probe import Verdict, probe
from gpu_worker.service.health.slot_limit import SlotLimit

logger = logging.getLogger("headgate.health")

EVERY_S = 1.0
CONFIRM_S = 0.2
"""The pause before a failed probe is repeated. Only two failures make an engine sick."""
PAUSE_FIRST_S = 0.5
PAUSE_MAX_S = 4.0
"""Between the probes of a sick engine; doubled up to the second."""
GROWING_S = 0.5
"""Between the probes of an engine that was overloaded, until all slots are open. It is less than the time for which a
refusal stops the growth, so no slot is added while the engine refuses what comes beside its requests."""
VERDICT_S = 1.0
"""The longest wait of a call that comes back for the verdict on the engine. It is shorter than the time after which the
agent returns an attempt that does not run."""
REPORT_S = 1.0
"""The longest wait for a heartbeat that tells the gate the verdict."""
AGAIN_S = 0.25
"""After this time an engine that refused a request without a Retry-After may be asked again."""
TENANTS_MAX = 1024
"""Further tenants with failures within EVERY_S start no probe of their own."""


UNEXPLAINED = FailedCall(False, 500, "engine_failed", "The engine failed on this request.")


async def _send_nothing() -> None:
    """Send no heartbeat: there is no agent."""


class EngineHealth:
    """`running` returns the number of executions in the engine. `serves` is False while the engine is replaced."""

    def __init__(
        self, engine: Engine, slots: int, clock: Clock, running: Callable[[], int], serves: Callable[[], bool]
    ) -> None:
        self.is_sick = False
        self.failures: Counter[Kind] = Counter()
        self.verdicts: Counter[Verdict] = Counter()
        self.report: Callable[[], Awaitable[object]] = _send_nothing
        """Sends a heartbeat. The agent sets it."""
        self._engine = engine
        self._clock = clock
        self._running = running
        self._serves = serves
        self._slots = slots
        self._limit = SlotLimit(slots)
        self._failed = FailedCalls()
        self._tenants = FailingTenants()
        self._slots_known = slots
        self._verdict = Verdict.UNKNOWN
        self._verdict_s = -inf
        self._suspects: set[str] = set()
        """The tenants with failed requests since the last probe began."""
        self._cleared: set[str] = set()
        """The tenants with failures that the probes of the last EVERY_S have explained."""
        self._probing: asyncio.Task[None] | None = None
        self._is_explained = asyncio.Event()
        """Set when the probe that runs has found something, and the gate knows it."""

    def slots_open(self) -> int:
        """Return the slots that the worker offers now."""
        return self._limit.open(self._clock.monotonic())

    def serves(self) -> bool:
        """Return whether the engine takes requests."""
        return self._serves() and not self.is_sick

    def note(self, order: WorkOrder, result: Finished | EngineError | None) -> None:
        """Record how the engine ended a request. Probe the engine if an error may be the engine's."""
        if isinstance(result, EngineError):
            self._note_error(order, result)
        else:
            self._tenants.served(order.tenant)

    def _note_error(self, order: WorkOrder, error: EngineError) -> None:
        kind, now_s = kind_of(error), self._clock.monotonic()
        self.failures[kind] += 1
        if kind in (Kind.REQUEST, Kind.REPLACED):
            self._failed.forget(order.invocation)
            return
        self._failed.note(order.invocation, _failed_call(kind, error, now_s))
        self._tenants.failed(order.tenant, now_s)
        if len(self._suspects) < TENANTS_MAX:
            self._suspects.add(order.tenant)
        is_recent = now_s - self._verdict_s < EVERY_S
        if kind is Kind.OVERLOAD and self._verdict is Verdict.OVERLOADED and is_recent:
            self._limit.shrink(self._running(), now_s)
        if not is_recent or order.tenant not in self._cleared:
            self._begin_probe(now_s)

    def hold_s(self, tenant: str) -> float:
        """Return the seconds for which an error is held back from the tenant."""
        return self._tenants.hold_s(tenant, self._clock.monotonic())

    def knows(self, call_id: str) -> bool:
        """Return whether an attempt of the call failed here before."""
        return self._failed.find(call_id) is not None

    async def refusal(self, order: WorkOrder) -> WorkRefused | None:
        """Decide on a call that failed here before and comes back. Return why it does not run, or None."""
        failed = self._failed.find(order.invocation)
        if failed is None or (failed.is_overload and self._clock.monotonic() >= failed.again_s):
            return None
        if not failed.is_stated:
            await self._verdict_known()
        if not self.serves():
            return WorkRefused(503, "draining", "This worker takes no more work for now.")
        is_overloaded = failed.is_overload and self._verdict is Verdict.OVERLOADED
        if is_overloaded and not failed.is_stated and order.attempt < ATTEMPTS_MAX:
            await self._tell()
            return WorkRefused(503, OVERLOADED, failed.message)
        return self.final_refusal(order)

    def final_refusal(self, order: WorkOrder) -> WorkRefused:
        """Return the error of a call that is not tried here again."""
        failed = self._failed.find(order.invocation) or UNEXPLAINED
        after_s = failed.again_s - self._clock.monotonic() if failed.is_stated else OVERLOADED_RETRY_S
        retry_after_s = max(0.0, after_s) if failed.is_overload else None
        return WorkRefused(failed.status, failed.code, failed.message, retry_after_s, final=True)

    async def stop(self) -> None:
        """End the probes."""
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)

    async def _verdict_known(self) -> None:
        """Wait until the probe that runs has found something, at most VERDICT_S."""
        if self._probing is not None:
            waits = {asyncio.ensure_future(each) for each in (self._is_explained.wait(), self._clock.sleep(VERDICT_S))}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()

    def _begin_probe(self, now_s: float) -> None:
        if self._probing is not None:
            return
        if now_s - self._verdict_s >= EVERY_S:
            self._cleared = set()
        self._cleared |= self._suspects
        self._is_explained.clear()
        self._probing = asyncio.ensure_future(self._probe(len(self._suspects)))
        self._probing.add_done_callback(self._ended)
        self._suspects = set()

    def _ended(self, probing: asyncio.Task[None]) -> None:
        self._probing = None
        if not probing.cancelled() and (error := probing.exception()) is not None:
            logger.error("the probe of the engine failed: %s", type(error).__name__)

    async def _probe(self, tenants: int) -> None:
        """Probe until the engine is well and all slots are open. `tenants`: the number of those that had failures."""
        while True:
            verdict = await self._ask()
            if verdict is Verdict.SICK:
                await self._clock.sleep(CONFIRM_S)
                verdict = await self._ask()
            if verdict is Verdict.SICK:
                logger.error("the engine is sick: requests of %d tenants failed, and two probes", tenants)
                await self._outlast()
            elif verdict is Verdict.OVERLOADED:
                await self._shrink()
            self._is_explained.set()
            if self.slots_open() >= self._slots:
                return
            await self._clock.sleep(GROWING_S)

    async def _shrink(self) -> None:
        before = self.slots_open()
        self._limit.shrink(self._running(), self._clock.monotonic())
        if self.slots_open() < before:
            logger.warning("the engine is overloaded: the worker offers %d slots", self.slots_open())
        await self._tell()

    async def _outlast(self) -> None:
        """Drain, with heartbeats, until a probe of the sick engine finds something else. The requests that failed were
        not at fault, so they may be repeated."""
        self.is_sick, pause_s = True, PAUSE_FIRST_S
        self._failed, self._tenants = FailedCalls(), FailingTenants()
        try:
            await self._report()
            self._is_explained.set()
            while await self._ask() is Verdict.SICK:
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
        finally:
            self.is_sick = False
        logger.info("the engine is well again")
        await self._report()

    async def _ask(self) -> Verdict:
        self._verdict = await probe(self._engine, self._clock)
        self._verdict_s = self._clock.monotonic()
        self.verdicts[self._verdict] += 1
        return self._verdict

    async def _tell(self) -> None:
        """Let the gate know that the worker offers fewer slots than it knows."""
        slots, known = self.slots_open(), self._slots_known
        self._slots_known = slots
        if slots < known:
            await self._report()

    async def _report(self) -> None:
        """Send a heartbeat. Wait for its answer at most REPORT_S."""
        reporting = asyncio.ensure_future(self.report())
        limit = asyncio.ensure_future(self._clock.sleep(REPORT_S))
        await asyncio.wait({reporting, limit}, return_when=asyncio.FIRST_COMPLETED)
        limit.cancel()


def _failed_call(kind: Kind, error: EngineError, now_s: float) -> FailedCall:
    if kind is Kind.FAILURE:
        return FailedCall(False, 500, error.code, error.message)
    after_s = error.retry_after_s
    again_s = now_s + (AGAIN_S if after_s is None else after_s)
    return FailedCall(True, overload_status(error), OVERLOADED, error.message, again_s, after_s is not None)
