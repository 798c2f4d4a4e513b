"""Starts executors for calls that no process holds while they are suspended (shard/records.py, NO_PROCESS).

The shard suspends these calls after one of their attempts was not begun. While they are suspended, this module starts
an executor for one of them every AGAIN_S, the first one at once. This takes no slot. When the executor holds its call,
all these calls get offers again. So an outage of the executors costs only the slots of the offers that were open when
it began. Each start is for another call, because the executor of one call may fail each time.
"""

from __future__ import annotations

from math import inf

from dispatcher.ports import Clock
from dispatcher.service.courier import Courier
from dispatcher.service.replica import Replica
from dispatcher.shard.records import NO_PROCESS

AGAIN_S = 2.0
"""The time between two starts."""


class Launches:
    """Starts the executors. Call `sweep` regularly."""

    def __init__(self, replica: Replica, clock: Clock, courier: Courier) -> None:
        self._replica, self._clock, self._courier = replica, clock, courier
        self._started_at = -inf
        self._starts = 0

    def sweep(self) -> None:
        """Start an executor if calls without a holder are suspended and the last start was AGAIN_S ago."""
        unheld, now = self._replica.shard.state.processes.get(NO_PROCESS), self._clock.monotonic()
        if unheld is None or not unheld.silent or now - self._started_at < AGAIN_S:
            return
        waiting = [call for call in unheld.calls.values() if not call.worker]
        if waiting:
            call = waiting[self._starts % len(waiting)]
            self._started_at = now
            self._starts += 1
            self._courier.launch(call.id, call.attempt)
