"""Who waits for the next stage of an interaction that is under way: some of it was admitted, not too much of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from gpu_worker.policies.fairness.accounting.arrival_queue import ArrivalQueue
from gpu_worker.policies.fairness.accounting.lazy_min_heap import LazyMinHeap
from gpu_worker.policies.request import RequestRecord

INTERACTIONS_KEPT_MAX = 10_000
"""Interactions whose admissions are counted; beyond it, those longest without one are forgotten: not under way."""

Interaction = tuple[str, str]
"""Tenant, and its name for the interaction: tenants cannot speed up or slow down one another's."""


class InteractionsInProgress:
    """`counter`: of a tenant. `stages_max`: an interaction with so many admissions is like any request again.

    Nobody tells where an interaction ends: one that nothing more is asked of stays until it is forgotten.
    """

    def __init__(self, counter: Callable[[str], float], stages_max: int) -> None:
        self._stages_max = stages_max
        self._admissions: OrderedDict[Interaction, int] = OrderedDict()
        self._waiting: dict[Interaction, dict[int, RequestRecord]] = {}
        self._in_progress: set[Interaction] = set()
        self._queues: dict[str, ArrivalQueue[RequestRecord]] = {}
        self._tenants = LazyMinHeap(counter)

    def next(self) -> tuple[float, RequestRecord] | None:
        """The lowest counter of a tenant with such a request waiting, and its oldest."""
        lowest = self._tenants.lowest()
        return None if lowest is None else (lowest[0], self._queues[lowest[1]].head())

    def add_waiting(self, record: RequestRecord) -> None:
        if record.request.interaction:
            interaction = _interaction(record)
            self._waiting.setdefault(interaction, {})[record.place] = record
            if interaction in self._in_progress:
                self._add_to_queue(record)

    def remove_waiting(self, record: RequestRecord) -> None:
        if record.request.interaction:
            interaction = _interaction(record)
            del self._waiting[interaction][record.place]
            if not self._waiting[interaction]:
                del self._waiting[interaction]
            if interaction in self._in_progress:
                self._remove_from_queue(record)

    def count_admission(self, record: RequestRecord) -> None:
        if record.request.interaction:
            interaction = _interaction(record)
            self._admissions[interaction] = self._admissions.get(interaction, 0) + 1
            self._admissions.move_to_end(interaction)
            self._update_progress(interaction)
            if len(self._admissions) > INTERACTIONS_KEPT_MAX:
                self._update_progress(self._admissions.popitem(last=False)[0])

    def undo_admission(self, record: RequestRecord) -> None:
        """Its admission came to nothing."""
        interaction = _interaction(record)
        if interaction in self._admissions:
            self._admissions[interaction] -= 1
            if not self._admissions[interaction]:
                del self._admissions[interaction]
            self._update_progress(interaction)

    def counter_decreased(self, tenant: str) -> None:
        """Its counter is lower than it was."""
        self._tenants.key_decreased(tenant)

    def _update_progress(self, interaction: Interaction) -> None:
        """Begun, or exhausted, or neither: all of it that waits goes to its tenant's line, or out of it."""
        in_progress = 0 < self._admissions.get(interaction, 0) < self._stages_max
        if in_progress == (interaction in self._in_progress):
            return
        (self._in_progress.add if in_progress else self._in_progress.remove)(interaction)
        for record in self._waiting.get(interaction, {}).values():
            (self._add_to_queue if in_progress else self._remove_from_queue)(record)

    def _add_to_queue(self, record: RequestRecord) -> None:
        tenant = record.request.tenant
        if tenant not in self._queues:
            self._queues[tenant] = ArrivalQueue()
            self._tenants.add(tenant)
        self._queues[tenant].add(record.place, record)

    def _remove_from_queue(self, record: RequestRecord) -> None:
        tenant = record.request.tenant
        self._queues[tenant].remove(record.place)
        if not self._queues[tenant]:
            del self._queues[tenant]
            self._tenants.remove(tenant)


def _interaction(record: RequestRecord) -> Interaction:
    return record.request.tenant, record.request.interaction
