"""Starts executors for calls that no process holds while they are suspended (shard/state/records.py, NO_PROCESS).

The shard suspends these calls after one of their attempts was not begun. While they are suspended, this module starts
an executor for one of them every AGAIN_S, the first one at once. This takes no slot. When the executor holds its call,
all these calls get offers again. So an outage of the executors costs only the slots of the offers that were open when
it began. Each start is for another call, because the executor of one call may fail each time.

A leader calls `sweep`. In a pool without a gate process, the sweep of each minute does the same
(dispatcher/processes/pool_sweep.py).
"""

from __future__ import annotations

from math import inf

from dispatcher.policies.orders.queues import Call
from dispatcher.ports import Clock
from dispatcher.service.gate.courier import Courier
from dispatcher.service.gate.replica import Replica
from dispatcher.shard.state.records import NO_PROCESS
from dispatcher.shard.state.state import State

AGAIN_S = 2.0
"""The time between two starts."""


def suspended_calls(state: State) -> list[Call]:
    """Return the waiting calls that no process holds, while they are suspended."""
    unheld = state.processes.get(NO_PROCESS)
    if unheld is None or not unheld.silent:
        return []
    return [call for call in unheld.calls.values() if not call.worker]


class Launches:
    """Starts the executors. Call `sweep` regularly."""

    def __init__(self, replica: Replica, clock: Clock, courier: Courier) -> None:
        self._replica, self._clock, self._courier = replica, clock, courier
        self._started_at = -inf
        self._starts = 0

    def sweep(self) -> None:
        """Start an executor if calls without a holder are suspended and the last start was AGAIN_S ago."""
        now = self._clock.monotonic()
        if now - self._started_at < AGAIN_S:
            return
        waiting = suspended_calls(self._replica.shard.state)
        if waiting:
            call = waiting[self._starts % len(waiting)]
            self._started_at = now
            self._starts += 1
            self._courier.launch(call.id, call.attempt)
