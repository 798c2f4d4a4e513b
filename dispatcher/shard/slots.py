"""The workers with free slots, by model, the least loaded first. Derived from the workers; its entries are lazy."""

from __future__ import annotations

from collections.abc import Collection
from heapq import heapify, heappop, heappush

from dispatcher.policies.orders.queues import Call
from dispatcher.shard.records import Worker

SLACK = 64
"""Dead entries kept in a heap, beyond as many as four for each worker, before they are swept out."""

Entry = tuple[float, str]
"""The part of its slots that a worker has in use, and its name."""


class Slots:
    def __init__(self) -> None:
        self._heaps: dict[str, list[Entry]] = {}
        self._workers: dict[str, dict[str, Worker]] = {}
        self._capacity_per_s: dict[str, float] | None = None

    def changed(self, worker: Worker) -> None:
        """Update the entry of a worker, after a change of the worker or of its running calls."""
        model, name = worker.model, worker.name
        workers = self._workers.get(model)
        if workers is None:
            workers, self._heaps[model] = self._workers.setdefault(model, {}), []
        if workers.get(name) is not worker:
            workers[name] = worker
            self._capacity_per_s = None
        used = len(worker.running)
        if used < worker.slots_open:
            heap = self._heaps[model]
            heappush(heap, (used / worker.slots, name))
            if len(heap) > 4 * len(workers) + SLACK:
                heap[:] = [(_load(each), name) for name, each in workers.items() if each.free > 0]
                heapify(heap)

    def left(self, worker: Worker) -> None:
        """The worker leaves, or its configuration is about to change."""
        workers = self._workers[worker.model]
        workers.pop(worker.name, None)
        if not workers:
            del self._workers[worker.model], self._heaps[worker.model]
        self._capacity_per_s = None

    def first(self, model: str) -> Worker | None:
        """Return the worker with the smallest part of its slots in use, then by name; None if no slot is free."""
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

    def best_for(self, call: Call, first: Worker) -> Worker:
        """Return `first`, of the call's model; if it lost the call's last attempt, the next that is free, if any."""
        if first.name != call.lost_on:
            return first
        others = [worker for worker in self.of(call.model) if worker is not first and worker.free > 0]
        return min(others, key=lambda worker: (_load(worker), worker.name), default=first)

    def has(self, model: str) -> bool:
        """Return whether any worker has the model, serving or not."""
        return model in self._workers

    def of(self, model: str) -> list[Worker]:
        return list(self._workers.get(model, {}).values())

    def capacity_per_s(self, model: str = "") -> float:
        """Return the capacity of the workers of a model ("": of all), in service units a second; 0 if none is measured.

        A worker that was never saturated has no measured capacity. It counts as the average of the others.
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
