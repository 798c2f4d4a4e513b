"""Sets the desired number of a pool's workers, from the load that the log shows (worker_count.py decides).

A smaller number would let the service choose the worker that stops. So one worker retires first (commands.Retire):

    the worker with the fewest calls retires ──▶ its calls end ──▶ the others are kept ──▶ the number is set

A worker without calls needs no retirement. If the load returns meanwhile, the worker serves again.

Which worker retires is in the log, so a new sweep goes on where the last one ended. ECS's guide proposes that a task
with work protects itself. Then a busy fleet could not be deployed, because protection blocks deployments too. The sweep
protects the others instead, for the minutes of one scale-in.

An empty pool is woken by a request for one of its models. The gate accepts no call for a model that no worker has, so
no waiting call shows the sweep that a worker is needed. The process that got the request sets the desired number from 0
to 1. From then on the sweep decides (worker_count.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from math import ceil, inf

from dispatcher.model.commands import Retire
from dispatcher.model.errors import NoWorker, StoreUnavailable
from dispatcher.model.fleet import FleetLoad, FleetScaler, ScaleReport, ServiceCount, WorkerLoad
from dispatcher.operations.worker_count import ScaleSettings, ScaleState, scale
from dispatcher.ports import Clock, GateLink


class Scaling:
    """`scaler` None: nothing is set, and the workers in the log count as the desired number.

    The state is in memory. A new process begins with none: its hold begins anew, and the capacity and the start-up are
    measured again.
    """

    def __init__(self, scaler: FleetScaler | None, link: GateLink, settings: ScaleSettings, clock: Clock) -> None:
        self._scaler, self._link, self._settings, self._clock = scaler, link, settings, clock
        self._state = ScaleState()

    async def sweep(self, load: FleetLoad) -> ScaleReport:
        """Decide, and set the number if it changes. A problem with the service is in the report: the sweep goes on."""
        try:
            count = await self._count(load)
        except StoreUnavailable as error:
            return ScaleReport(None, error.message)
        existing = max(count.existing, load.ready + load.leaving)
        decision = scale(self._settings, self._state, load, count.desired, existing, self._clock.now())
        try:
            is_set = self._scaler is None or await self._set(self._scaler, decision.workers, count.desired, load)
        except StoreUnavailable as error:
            return ScaleReport(decision.workers, error.message)
        self._state = decision.state if is_set else replace(decision.state, decided=count.desired)
        return ScaleReport(decision.workers)

    async def _count(self, load: FleetLoad) -> ServiceCount:
        if self._scaler is None:
            return ServiceCount(load.ready, load.ready + load.leaving)
        return await self._scaler.count()

    async def _set(self, scaler: FleetScaler, workers: int, desired: int, load: FleetLoad) -> bool:
        """Set the number. Return False if a worker must retire before. Raises StoreUnavailable."""
        leaver = _leaver(load) if workers < desired == load.ready else None
        await self._let_serve(load, leaver, workers)
        if workers == desired:
            return True
        if leaver is not None and leaver.running:
            await self._link.do(Retire(leaver.worker))
            return False
        if workers < desired:
            staying = [each.worker for each in load.workers if each is not leaver]
            await scaler.keep(staying, "" if leaver is None else leaver.worker)
        await scaler.set(workers)
        return True

    async def _let_serve(self, load: FleetLoad, leaver: WorkerLoad | None, workers: int) -> None:
        """Give retiring workers new work again, except the one that leaves, and one that the service is stopping."""
        for each in load.workers:
            if each.is_retiring and each is not leaver and load.ready <= workers:
                await self._link.do(Retire(each.worker, is_over=True))


def _leaver(load: FleetLoad) -> WorkerLoad | None:
    """Return the worker that leaves: one that retires already, then one whose model others have too, then the one with
    the fewest calls."""
    return min(load.workers, key=lambda each: (not each.is_retiring, each.is_last, each.running), default=None)


CHECK_S = 30.0
"""The service is read at most once in this time by one process, however many requests arrive."""
_LATE_S = 15.0
"""The least time after which a new try makes sense; also if a start-up takes longer than expected."""


class Waking:
    """`models`: those that the pool serves, also while it has no worker. `start_s`: the expected start-up."""

    def __init__(self, scaler: FleetScaler, models: Collection[str], start_s: float, clock: Clock) -> None:
        self._scaler, self._models, self._start_s, self._clock = scaler, frozenset(models), start_s, clock
        self._checked_at = -inf
        self._started_at: float | None = None
        """When this process first found that a worker starts, in monotonic seconds."""
        self._lock = asyncio.Lock()

    def serves(self, model: str) -> bool:
        return model in self._models

    async def error_for(self, model: str) -> NoWorker:
        """Return the error for a request without a worker, after making sure that a worker starts.

        Its `retry_after_s` is the expected rest of the start-up. If another process has begun it, this process counts
        it from when it found out, which is later.
        """
        if not self.serves(model):
            return NoWorker()
        async with self._lock:
            if self._clock.monotonic() - self._checked_at >= CHECK_S:
                await self._check()
        if self._started_at is None:
            return NoWorker("The pool has no worker, and none could be started.")
        rest_s = float(ceil(max(_LATE_S, self._start_s - (self._clock.monotonic() - self._started_at))))
        error = NoWorker(f"A worker for this model is starting. Try again in about {rest_s:.0f} s.")
        error.retry_after_s = rest_s
        return error

    async def _check(self) -> None:
        """Start a worker if none is desired. A service that cannot be used is tried again after CHECK_S."""
        now = self._clock.monotonic()
        self._checked_at = now
        try:
            count = await self._scaler.count()
            if count.desired == 0:
                await self._scaler.set(1)
        except StoreUnavailable:
            self._started_at = None
            return
        is_over = self._started_at is None or count.desired == 0
        self._started_at = now if is_over else self._started_at
