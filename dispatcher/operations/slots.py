"""Which slot an invocation is given. Routing by model and load; request groups and virtual queues come here later."""

from __future__ import annotations

from collections.abc import Iterable

from dispatcher.model.errors import NoWorker
from dispatcher.model.fleet import Worker
from dispatcher.model.invocation import Slot
from dispatcher.operations.context import Context


def free_slot(context: Context, workers: Iterable[Worker], model: str, now: float) -> Slot | None:
    """A free slot of the least loaded worker that serves `model`, or None.

    Load is the share of slots taken. Ties go by seat, so equal snapshots choose alike: whoever loses the race for the
    slot queues, and the next drain looks again.
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
    """Raises NoWorker where nobody alive serves the model: nothing is accepted that nobody would execute."""
    if not any(worker.model == model and now < worker.alive_until for worker in workers):
        raise NoWorker()
