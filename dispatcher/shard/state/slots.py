"""Finds the least loaded worker with a free slot, by model. This is derived from the workers, and is not in the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from heapq import heapify, heappop, heappush

from dispatcher.policies.orders.queues import Call
from dispatcher.shard.state.records import Worker

SLACK = 64
"""A heap may hold four entries for each worker, and SLACK more, before the outdated ones are dropped."""

Entry = tuple[float, str]
"""The part of a worker's slots that is in use, and the worker's name. An entry with another part than now is
outdated."""


class Slots:
    def __init__(self) -> None:
        self._heaps: dict[str, list[Entry]] = {}
        self._workers: dict[str, dict[str, Worker]] = {}
        self._loadable: Counter[str] = Counter()
        """The number of workers that can load each model, for workers with several."""
        self._swapping = 0
        self._capacity_per_s: dict[str, float] | None = None

    def update(self, worker: Worker) -> None:
        """Update the entry of a worker, after a change of the worker or of its running calls."""
        model, name = worker.model, worker.name
        workers = self._workers.get(model)
        if workers is None:
            workers, self._heaps[model] = self._workers.setdefault(model, {}), []
        if workers.get(name) is not worker:
            workers[name] = worker
            self._loadable.update(worker.swap_s.keys())
            self._swapping += bool(worker.swap_s)
            self._capacity_per_s = None
        used = len(worker.running)
        if used < worker.slots_open:
            heap = self._heaps[model]
            heappush(heap, (used / worker.slots, name))
            if len(heap) > 4 * len(workers) + SLACK:
                heap[:] = [(_load(each), name) for name, each in workers.items() if each.free > 0]
                heapify(heap)

    def remove(self, worker: Worker) -> None:
        """Remove the worker, because it leaves or its configuration is about to change."""
        workers = self._workers[worker.model]
        if workers.pop(worker.name, None) is not None:
            self._loadable.subtract(worker.swap_s.keys())
            self._swapping -= bool(worker.swap_s)
        if not workers:
            del self._workers[worker.model], self._heaps[worker.model]
        self._capacity_per_s = None

    def first(self, model: str) -> Worker | None:
        """Return the worker with the smallest part of its slots in use, or None if no slot is free. Ties go by name."""
        heap = self._heaps.get(model)
        if not heap:
            return None
        workers = self._workers[model]
        while heap:
            load, name = heap[0]
            worker = workers.get(name)
            if worker is not None:
                used = len(worker.running)
                if used < worker.slots_open and load == used / worker.slots:
                    return worker
            heappop(heap)
        return None

    def best_for(self, call: Call, first: Worker, unreached: Collection[str]) -> Worker:
        """Return the worker for the call. `first` is the least loaded worker of its model.

        That is `first`, unless it lost the call's last attempt or is in `unreached`. Then it is another worker with a
        free slot that did not lose the attempt, if there is one; those that are not in `unreached` are preferred.
        """
        if first.name != call.lost_on and first.name not in unreached:
            return first
        others = [worker for worker in self.of(call.model) if worker.name != call.lost_on and worker.free > 0]
        return min(others, key=lambda each: (each.name in unreached, _load(each), each.name), default=first)

    @property
    def can_swap(self) -> bool:
        """True if a worker can load several models."""
        return self._swapping > 0

    def has(self, model: str) -> bool:
        """Return whether any worker has the model or can load it, whether or not it gets new work."""
        return model in self._workers or self._loadable[model] > 0

    def is_loaded(self, model: str) -> bool:
        """Return whether any worker has the model, whether or not it gets new work."""
        return model in self._workers

    def of(self, model: str) -> list[Worker]:
        return list(self._workers.get(model, {}).values())

    def capacity_per_s(self, model: str = "") -> float:
        """Return the capacity of a model's workers ("": of all workers), in service units a second; 0 if unknown.

        A worker that was never saturated has no measured capacity. The average of the others is used for it.
        """
        known = self._capacity_per_s
        if known is None:
            known = self._capacity_per_s = {name: _capacity_per_s(its.values()) for name, its in self._workers.items()}
            known[""] = _capacity_per_s([worker for its in self._workers.values() for worker in its.values()])
        return known.get(model, 0.0)


def _capacity_per_s(workers: Collection[Worker]) -> float:
    measured = [worker.config.service_per_s for worker in workers if worker.config.service_per_s]
    return sum(measured) * (len(workers) / len(measured)) if measured else 0.0


def _load(worker: Worker) -> float:
    return len(worker.running) / worker.slots
