"""What the gate's log shows of a pool's load and delays, and the service that runs its workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class WorkerLoad(NamedTuple):
    """A worker that is ready, in the sense of FleetLoad.ready."""

    worker: str
    running: int
    """The calls that run on it."""
    is_retiring: bool = False
    """It gets no new work, because it will be stopped (commands.Retire)."""
    is_last: bool = False
    """No other ready worker has its model."""


class FleetLoad(NamedTuple):
    """The load of a pool at one moment. Service in service units."""

    ready: int
    """Workers that serve, that rest for some seconds after failures, or that retire."""
    leaving: int
    """Workers that drain, or that sent no heartbeat for some seconds."""
    holding: int
    """The smallest number of workers whose slots hold the calls that run now."""
    waiting: Mapping[str, int]
    """The waiting calls by tier; a tier without any has 0."""
    waiting_service: float
    """Expected service of the waiting calls that may not wait longer: all but those of deferred classes with slack."""
    arriving_per_s: float
    """Service that arrives in a second, without deferred classes."""
    service_per_s: float
    """The measured capacity of one worker in service units a second, a mean of the fleet; 0 if none is measured."""
    workers: tuple[WorkerLoad, ...] = ()
    """The loads of the workers that are ready."""


class ServiceCount(NamedTuple):
    """The workers of a fleet's service. `existing`: those that start or run; a draining one may be missing."""

    desired: int
    existing: int


class ScaleReport(NamedTuple):
    """What one sweep decided. `wanted`: the workers that the pool should have; None if the service could not be read.
    `problem`: why the number could not be read or set; empty if it could."""

    wanted: int | None
    problem: str = ""


class FleetScaler(Protocol):
    """The service that runs a pool's workers, and starts or stops them until their number is the desired one.

    All methods raise StoreUnavailable if the service cannot be read or changed.
    """

    async def count(self) -> ServiceCount: ...

    async def keep(self, workers: Sequence[str], leaver: str = "") -> None:
        """Make sure that a smaller number, set now, stops none of these workers, and may stop `leaver` at once."""
        ...

    async def set(self, workers: int) -> None:
        """Set the desired number. Return before the workers have started or stopped."""
        ...


class PoolDelays(NamedTuple):
    """How late a pool is, in seconds: the values behind the alarms for waiting and for a log that stands still."""

    oldest_wait_s: Mapping[str, float]
    """For each tier, how long the oldest waiting call has waited, without deferred classes; 0 if none waits."""
    overdue_s: float
    """For how long a decision has been due that is not in the log; 0 if none is due. A deadline of a waiting call, the
    end of a worker's rest and the end of an order to load a model are due at a known time, and a gate that works
    decides them in a second."""
