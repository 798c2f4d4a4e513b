"""Indexes by model of what workers hold and run, so that a decision does not look at every worker and call. They are
derived like the others (indexes.py), and are not in the log."""

from __future__ import annotations

from collections import Counter
from math import sqrt

from dispatcher.policies.orders.queues import Call
from dispatcher.shard.state.records import Worker

_LEAVING = frozenset({"draining", "retiring"})


class HeldModels:
    """The models that workers have and will not leave with, or load. A silent worker counts, because it reports again
    or is lost within seconds."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}
        """The held model of each worker."""
        self.counts: Counter[str] = Counter()
        """The number of workers that hold each model, of those that have any."""

    def update(self, worker: Worker) -> None:
        """Bring the index up to date with the worker's model, order or state."""
        held = worker.target if worker.load or worker.config.state not in _LEAVING else None
        if self._of.get(worker.name) != held:
            self.remove(worker.name)
            if held is not None:
                self._of[worker.name] = held
                self.counts[held] += 1

    def remove(self, name: str) -> None:
        held = self._of.pop(name, None)
        if held is not None:
            self.counts[held] -= 1
            if not self.counts[held]:
                del self.counts[held]


_MICROSECONDS = 1_000_000


class RunningAges:
    """For how long the running calls of each model have run. Times are counted in whole microseconds, so that nothing
    drifts."""

    def __init__(self) -> None:
        self._sums: dict[str, list[int]] = {}
        """The number of running calls of each model, and the sums of the times at which they were dispatched and of
        their squares."""

    def note(self, call: Call, sign: int) -> None:
        """Count a call that gets a slot; with `sign` -1 one that gives its slot back."""
        sums = self._sums.get(call.model)
        if sums is None:
            sums = self._sums[call.model] = [0, 0, 0]
        at = int(call.dispatched_at * _MICROSECONDS)
        sums[0] += sign
        if sums[0]:
            sums[1] += sign * at
            sums[2] += sign * at * at
        else:
            del self._sums[call.model]

    def count(self, model: str) -> int:
        """Return the number of the model's running calls."""
        return self._sums[model][0] if model in self._sums else 0

    def of(self, model: str, now: float) -> tuple[float, float]:
        """Return mean and standard deviation of the seconds since the dispatch of the model's running calls, both as
        estimated from these calls; 0 if none runs, and for one alone no deviation."""
        count, since, squares = self._sums.get(model, (0, 0, 0))
        if not count:
            return 0.0, 0.0
        spread = sqrt((count * squares - since * since) / (count * (count - 1))) if count > 1 else 0.0
        return max(0.0, now - since / count / _MICROSECONDS), spread / _MICROSECONDS
