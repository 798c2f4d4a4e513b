"""Decides what the failures of requests mean for the worker: nothing, fewer slots, or no new work until it is well.

    a request fails ──▶ probe ──▶ well: the request was at fault
                                  refused too: the engine is overloaded, and the worker offers fewer slots until
                                  probes beside its requests are taken again (SlotLimit)
                                  fails twice too: the engine is sick, and the worker drains until a probe succeeds

One probe runs at a time. A failure is explained by a probe that began after it. Only a tenant with several failures in
a row gets the verdict of a probe of the last EVERY_S. So one tenant's bad requests cost the engine one token a second,
and no number of them takes a slot from other tenants.

The calls with failed attempts are remembered. The gate offers a returned call to another worker if it can. If the call
comes back, there is no other, and a repetition at once would fail in the same way: the request is at fault, or the
engine asks for time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from math import inf
from typing import NamedTuple

from dispatcher.model.kept import ATTEMPTS_MAX
from dispatcher.model.worker_protocol import Finished, WorkOrder, WorkRefused
from dispatcher.ports import Clock
from gpu_worker.engines.interface import Engine, EngineError
from gpu_worker.service.executions.endings import OVERLOADED_RETRY_S
from gpu_worker.service.health.failures import OVERLOADED, FailureKind, ProbeVerdict, kind_of, overload_status, probe
from gpu_worker.service.health.limits import FailingTenants, SlotLimit

logger = logging.getLogger("headgate.health")

EVERY_S = 1.0
_CONFIRM_S = 0.2
"""The pause before a failed probe is repeated. Only two failures make an engine sick."""
_PAUSE_FIRST_S = 0.5
_PAUSE_MAX_S = 4.0
"""Between the probes of a sick engine; doubled up to the second."""
_GROWING_S = 0.5
"""Between the probes of an engine that was overloaded, until all slots are open. It is less than the time for which a
refusal stops the growth, so no slot is added while the engine refuses what comes beside its requests."""
_VERDICT_S = 1.0
"""The longest wait of a call that comes back for the verdict on the engine. It is shorter than the time after which the
agent returns an attempt that does not run."""
_REPORT_S = 1.0
"""The longest wait for a heartbeat that tells the gate the verdict."""
_AGAIN_S = 0.25
"""After this time an engine that refused a request without a Retry-After may be asked again."""
_CALLS_MAX = 1024
"""Beyond this many calls the oldest is forgotten: it is repeated if it comes back."""


class FailedCall(NamedTuple):
    """`is_overload`: the engine refused it for now. `status`, `code`, `message`: what its caller gets. `again_s`: when
    the engine may be asked again, by the monotonic clock. `is_stated`: the engine itself said so (Retry-After).
    `after_round`: a later round of probes explains the failure."""

    is_overload: bool
    status: int
    code: str
    message: str
    again_s: float = 0.0
    is_stated: bool = False
    after_round: int = 0


class FailedCalls:
    """Remembers the calls with failed attempts on this worker, so that none is repeated in vain. Pure."""

    def __init__(self, calls_max: int = _CALLS_MAX) -> None:
        self._calls: dict[str, FailedCall] = {}
        self._calls_max = calls_max

    def note(self, call_id: str, failed: FailedCall) -> None:
        self._calls.pop(call_id, None)
        self._calls[call_id] = failed
        if len(self._calls) > self._calls_max:
            del self._calls[next(iter(self._calls))]

    def find(self, call_id: str) -> FailedCall | None:
        return self._calls.get(call_id)

    def forget(self, call_id: str) -> None:
        self._calls.pop(call_id, None)


_UNEXPLAINED = FailedCall(False, 500, "engine_failed", "The engine failed on this request.")


async def _send_nothing() -> None:
    """Send no heartbeat: there is no agent."""


class EngineHealth:
    """`running` returns the number of executions in the engine. `serves` is False while the engine is replaced."""

    def __init__(
        self, engine: Engine, slots: int, clock: Clock, running: Callable[[], int], serves: Callable[[], bool]
    ) -> None:
        self.is_sick = False
        self.failures: Counter[FailureKind] = Counter()
        self.verdicts: Counter[ProbeVerdict] = Counter()
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
        self._verdict = ProbeVerdict.UNKNOWN
        self._verdict_s = -inf
        self._rounds = 0
        """The rounds of probes that have begun."""
        self._explained = 0
        """The last round that has found something, which the gate knows."""
        self._news = asyncio.Event()
        """Set at the end of a round; then replaced."""
        self._wanted = asyncio.Event()
        """Set if a failure wants a round that begins after it."""
        self._probing: asyncio.Task[None] | None = None

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
            self._tenants.on_answer(order.terms.tenant)

    def _note_error(self, order: WorkOrder, error: EngineError) -> None:
        kind, now_s = kind_of(error), self._clock.monotonic()
        self.failures[kind] += 1
        if kind in (FailureKind.REQUEST, FailureKind.REPLACED):
            self._failed.forget(order.invocation)
            return
        self._tenants.on_failure(order.terms.tenant, now_s)
        is_recent = now_s - self._verdict_s < EVERY_S
        if kind is FailureKind.OVERLOAD and self._verdict is ProbeVerdict.OVERLOADED and is_recent:
            self._limit.shrink(self._running(), now_s)
        needs_probe = not is_recent or not self._tenants.is_known(order.terms.tenant)
        after_round = self._rounds if needs_probe else 0
        self._failed.note(order.invocation, _failed_call(kind, error, now_s)._replace(after_round=after_round))
        if needs_probe:
            self._want_probe()

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
            await self._await_verdict(failed.after_round)
        if not self.serves():
            return WorkRefused(503, "draining", "This worker takes no more work for now.")
        is_overloaded = failed.is_overload and self._verdict is ProbeVerdict.OVERLOADED
        if is_overloaded and not failed.is_stated and order.attempt < ATTEMPTS_MAX:
            await self._tell()
            return WorkRefused(503, OVERLOADED, failed.message)
        return self.final_refusal(order)

    def final_refusal(self, order: WorkOrder) -> WorkRefused:
        """Return the error of a call that is not tried here again."""
        failed = self._failed.find(order.invocation) or _UNEXPLAINED
        after_s = failed.again_s - self._clock.monotonic() if failed.is_stated else OVERLOADED_RETRY_S
        retry_after_s = max(0.0, after_s) if failed.is_overload else None
        return WorkRefused(failed.status, failed.code, failed.message, retry_after_s, final=True)

    async def stop(self) -> None:
        """End the probes."""
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)

    async def _await_verdict(self, after_round: int) -> None:
        """Wait until a round after this one has found something, at most _VERDICT_S."""
        limit = asyncio.ensure_future(self._clock.sleep(_VERDICT_S))
        while self._probing is not None and self._explained <= after_round and not limit.done():
            news = asyncio.ensure_future(self._news.wait())
            await asyncio.wait({news, limit}, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
        limit.cancel()

    def _want_probe(self) -> None:
        self._wanted.set()
        if self._probing is None:
            self._probing = asyncio.ensure_future(self._probe())
            self._probing.add_done_callback(self._note_end)

    def _note_end(self, probing: asyncio.Task[None]) -> None:
        self._probing = None
        self._explain()
        if not probing.cancelled() and (error := probing.exception()) is not None:
            logger.error("the probe of the engine failed: %s", type(error).__name__)

    def _explain(self) -> None:
        self._explained = self._rounds
        self._news.set()
        self._news = asyncio.Event()

    async def _probe(self) -> None:
        """Probe until every failure is explained and all slots are open. While the engine has fewer requests than slots
        are open, the growth needs no proof: an engine that refuses the next request is probed then."""
        while self._wanted.is_set() or self.slots_open() < self._slots:
            if self._wanted.is_set() or self._running() >= self.slots_open():
                self._wanted.clear()
                await self._probe_once()
            if not self._wanted.is_set() and self.slots_open() < self._slots:
                await self._pause_growth()

    async def _pause_growth(self) -> None:
        """Wait for _GROWING_S, or until a failure wants a probe."""
        waits = {asyncio.ensure_future(each) for each in (self._wanted.wait(), self._clock.sleep(_GROWING_S))}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()

    async def _probe_once(self) -> None:
        """Probe the engine in one round, and act on what the probe finds."""
        self._rounds += 1
        verdict = await self._ask()
        if verdict is ProbeVerdict.SICK:
            await self._clock.sleep(_CONFIRM_S)
            verdict = await self._ask()
        if verdict is ProbeVerdict.SICK:
            logger.error("the engine is sick: two probes failed, after failures of %d tenants", len(self._tenants))
            await self._outlast()
        elif verdict is ProbeVerdict.OVERLOADED:
            await self._shrink()
        self._explain()

    async def _shrink(self) -> None:
        before = self.slots_open()
        self._limit.shrink(self._running(), self._clock.monotonic())
        if self.slots_open() < before:
            logger.warning("the engine is overloaded: the worker offers %d slots", self.slots_open())
        await self._tell()

    async def _outlast(self) -> None:
        """Drain, with heartbeats, until a probe of the sick engine finds something else. The requests that failed were
        not at fault, so they may be repeated."""
        self.is_sick, pause_s = True, _PAUSE_FIRST_S
        self._failed, self._tenants = FailedCalls(), FailingTenants()
        try:
            await self._report()
            self._explain()
            while await self._ask() is ProbeVerdict.SICK:
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        finally:
            self.is_sick = False
        logger.info("the engine is well again")
        await self._report()

    async def _ask(self) -> ProbeVerdict:
        self._verdict = await probe(self._engine, self._clock, self.verdicts.total())
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
        """Send a heartbeat. Wait for its answer at most _REPORT_S."""
        reporting = asyncio.ensure_future(self.report())
        limit = asyncio.ensure_future(self._clock.sleep(_REPORT_S))
        await asyncio.wait({reporting, limit}, return_when=asyncio.FIRST_COMPLETED)
        limit.cancel()


def _failed_call(kind: FailureKind, error: EngineError, now_s: float) -> FailedCall:
    if kind is FailureKind.FAILURE:
        return FailedCall(False, 500, error.code, error.message)
    after_s = error.retry_after_s
    again_s = now_s + (_AGAIN_S if after_s is None else after_s)
    return FailedCall(True, overload_status(error), OVERLOADED, error.message, again_s, after_s is not None)
