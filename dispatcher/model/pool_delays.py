"""How late a pool is: the values behind the alarms for waiting and for a log that stands still."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class PoolDelays(NamedTuple):
    """Seconds, at one moment."""

    oldest_wait_s: Mapping[str, float]
    """For each tier, how long the oldest waiting call has waited, without deferred classes; 0 if none waits."""
    overdue_s: float
    """For how long a decision has been due that is not in the log; 0 if none is due. A deadline of a waiting call, the
    end of a worker's rest and the end of an order to load a model are due at a known time, and a gate that works
    decides them in a second."""
