"""Starts the first worker of an empty pool when a request for one of the pool's models arrives.

The gate accepts no call for a model that no worker has, so no waiting call shows the sweep that a worker is needed.
The process that got the request sets the desired number from 0 to 1. From then on the sweep decides (scale.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from math import ceil, inf

from dispatcher.model.errors import NoWorker, StoreUnavailable
from dispatcher.model.fleet import FleetScaler
from dispatcher.ports import Clock

CHECK_S = 30.0
"""The service is read at most once in this time by one process, however many requests arrive."""
LATE_S = 15.0
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
        rest_s = float(ceil(max(LATE_S, self._start_s - (self._clock.monotonic() - self._started_at))))
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
