"""The choice of a slot for an invocation, by model and load."""

from __future__ import annotations

from collections.abc import Iterable

from dispatcher.model.errors import NoWorker
from dispatcher.model.old_fleet import Worker
from dispatcher.model.old_invocation import Slot
from dispatcher.old_operations.context import Context


def free_slot(context: Context, workers: Iterable[Worker], model: str, now: float) -> Slot | None:
    """Return a free slot of the least loaded worker that serves `model`, or None.

    Load is the part of the slots that is taken. The lower seat wins a tie, so equal snapshots choose the same slot. The
    request that loses the race for it is queued, and the next drain chooses again.
    """
    usable = [
        (len(worker.leases) / worker.slots, worker.seat, worker)
        for worker in workers
        if worker.model == model and context.may_use(worker, now) and worker.free_slots()
    ]
    if not usable:
        return None
    worker = min(usable, key=lambda entry: entry[:2])[2]
    return Slot(worker.id, worker.free_slots()[0])


def require_worker(workers: Iterable[Worker], model: str, now: float) -> None:
    """Raise NoWorker unless a live worker serves the model: a request that cannot be executed is not accepted."""
    if not any(worker.model == model and now < worker.alive_until for worker in workers):
        raise NoWorker()
