"""Waiting requests that continue an interaction in progress, by tenant.

An interaction is in progress from its first admission until it has had `stages_max` admissions. A later request of it
is treated like any other request.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from gpu_worker.policies.fairness.accounting.arrival_queue import ArrivalQueue
from gpu_worker.policies.fairness.accounting.lazy_min_heap import LazyMinHeap
from gpu_worker.policies.request import RequestRecord

INTERACTIONS_KEPT_MAX = 10_000
"""Interactions with an admission count. Beyond it, the interaction admitted the longest ago is forgotten, which ends
its progress."""

Interaction = tuple[str, str]
"""A tenant and its name for the interaction, so that no tenant can affect the interactions of another."""


class InteractionsInProgress:
    """`counter`: returns the counter of a tenant. `stages_max`: admissions for which an interaction is in progress.

    No event reports the end of an interaction. One without further requests stays until it is forgotten.
    """

    def __init__(self, counter: Callable[[str], float], stages_max: int) -> None:
        self._stages_max = stages_max
        self._admissions: OrderedDict[Interaction, int] = OrderedDict()
        self._waiting: dict[Interaction, dict[int, RequestRecord]] = {}
        self._in_progress: set[Interaction] = set()
        self._queues: dict[str, ArrivalQueue[RequestRecord]] = {}
        """The waiting requests of interactions in progress, by tenant."""
        self._tenants = LazyMinHeap(counter)

    def next(self) -> tuple[float, RequestRecord] | None:
        """Return the lowest counter of a tenant in `_queues`, and the oldest request there; None if all are empty."""
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
        interaction = _interaction(record)
        if interaction in self._admissions:
            self._admissions[interaction] -= 1
            if not self._admissions[interaction]:
                del self._admissions[interaction]
            self._update_progress(interaction)

    def counter_decreased(self, tenant: str) -> None:
        self._tenants.key_decreased(tenant)

    def _update_progress(self, interaction: Interaction) -> None:
        """Decide whether the interaction is in progress; if that changed, move its waiting requests in or out of
        `_queues`."""
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
