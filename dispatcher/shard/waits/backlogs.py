"""The service that waits for each model, by rank, kept up to date queue by queue (waits.py reads it).

A rank is a tier, or DEFERRED_RANK. A queue's service is its number of calls times the mean service of its tenant's
calls. If that mean is not known, it is the model's, which changes with every end. So such queues are counted in calls,
and the sums are multiplied by the model's mean when they are read. A tenant's forecast arrivals are added to what waits
in its queue.

Only `waits.sum_changed` changes the sums, for the tenants in `WaitRecord.changed`. It runs before the first wait of an
entry is found, and when many tenants have changed. So an entry without such a wait costs nothing here. The sums may
contain what a decision has changed that is not written yet. If it is undone, the same tenants have changed again, so
nothing of it stays.
"""

from __future__ import annotations

from typing import NamedTuple

from dispatcher.policies.tiers import Tier
from dispatcher.shard.waits.levels import Levels, scaled

DEFERRED_RANK = len(Tier)

QueueName = tuple[str, bool]
"""A model, and whether the queue's calls are deferred."""


class Part(NamedTuple):
    """What one queue adds to the sums: `now` waits, and `later` is that with what is forecast to arrive.

    Both are calls, or service units with `is_service`. All numbers are in units of 1 / SCALE (levels.py).
    """

    rank: int
    is_service: bool
    weight: int
    now: int
    later: int


class RankSums:
    """The sums of one model and rank, in calls and in service units, of what waits now and of what is forecast."""

    __slots__ = ("calls", "service")

    def __init__(self) -> None:
        self.calls, self.service = (Levels(), Levels()), (Levels(), Levels())

    def add(self, part: Part, sign: int) -> None:
        now, later = self.service if part.is_service else self.calls
        if part.now:
            now.add(part.now, part.weight, sign)
        later.add(part.later, part.weight, sign)

    def given(self, level: float, mean_cost: float) -> tuple[float, float]:
        """Return the service that all queues get until each has got `level` per weight, of what waits now and of that
        with what is forecast. `mean_cost`: the model's mean service of a call, above 0."""
        calls, service = level / mean_cost, self.service
        now = self.calls[0].given(calls) * mean_cost + service[0].given(level)
        return now, self.calls[1].given(calls) * mean_cost + service[1].given(level)

    @property
    def is_empty(self) -> bool:
        return not (self.calls[1].sums or self.service[1].sums)


class Backlogs:
    """The sums by model and rank, and each queue's part of them."""

    def __init__(self) -> None:
        self.ranks: dict[str, dict[int, RankSums]] = {}
        """The sums by model and rank. A model or a rank without a queue is absent."""
        self.parts: dict[str, dict[QueueName, Part]] = {}
        """The parts by tenant and queue."""

    def set(self, tenant: str, queue: QueueName, part: Part | None) -> None:
        """Replace the queue's part. None: it adds nothing."""
        of_tenant = self.parts.get(tenant)
        before = of_tenant.get(queue) if of_tenant is not None else None
        if before == part:
            return
        if part is not None:
            self._add(queue[0], part)
            self.parts.setdefault(tenant, {})[queue] = part
        elif of_tenant is not None:
            del of_tenant[queue]
            if not of_tenant:
                del self.parts[tenant]
        if before is not None:
            self._remove(queue[0], before)

    def waiting(self, tenant: str, queue: QueueName, mean_cost: float) -> tuple[float, float]:
        """Return the queue's own service in the sums: what waits now, and that with what is forecast."""
        part = self.parts.get(tenant, {}).get(queue)
        if part is None:
            return 0.0, 0.0
        unit = (1.0 if part.is_service else mean_cost) / scaled(1.0)
        return part.now * unit, part.later * unit

    def _add(self, model: str, part: Part) -> None:
        ranks = self.ranks.get(model)
        if ranks is None:
            ranks = self.ranks[model] = {}
        sums = ranks.get(part.rank)
        if sums is None:
            sums = ranks[part.rank] = RankSums()
        sums.add(part, 1)

    def _remove(self, model: str, part: Part) -> None:
        ranks = self.ranks[model]
        sums = ranks[part.rank]
        sums.add(part, -1)
        if sums.is_empty:
            del ranks[part.rank]
            if not ranks:
                del self.ranks[model]
