"""Who waits for the next stage of an interaction that is under way: some of it was admitted, not too much of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from gpu_worker.policies.fairness.accounting.arrival_queue import ArrivalQueue
from gpu_worker.policies.fairness.accounting.lowest_first import LowestFirst
from gpu_worker.policies.request import Held

INTERACTIONS_KEPT_MAX = 10_000
"""Interactions whose admissions are counted; beyond it, those longest without one are forgotten: not under way."""

Interaction = tuple[str, str]
"""Tenant, and its name for the interaction: tenants cannot speed up or slow down one another's."""


class UnderWay:
    """`counter`: of a tenant. `stages_max`: an interaction with so many admissions is like any request again.

    Nobody tells where an interaction ends: one that nothing more is asked of stays until it is forgotten.
    """

    def __init__(self, counter: Callable[[str], float], stages_max: int) -> None:
        self._stages_max = stages_max
        self._admissions: OrderedDict[Interaction, int] = OrderedDict()
        self._waiting: dict[Interaction, dict[int, Held]] = {}
        self._under_way: set[Interaction] = set()
        self._queues: dict[str, ArrivalQueue[Held]] = {}
        self._tenants = LowestFirst(counter)

    def next(self) -> tuple[float, Held] | None:
        """The lowest counter of a tenant with such a request waiting, and its oldest."""
        lowest = self._tenants.lowest()
        return None if lowest is None else (lowest[0], self._queues[lowest[1]].head())

    def waits(self, held: Held) -> None:
        if held.request.interaction:
            interaction = _interaction(held)
            self._waiting.setdefault(interaction, {})[held.place] = held
            if interaction in self._under_way:
                self._stands(held)

    def waits_no_more(self, held: Held) -> None:
        if held.request.interaction:
            interaction = _interaction(held)
            del self._waiting[interaction][held.place]
            if not self._waiting[interaction]:
                del self._waiting[interaction]
            if interaction in self._under_way:
                self._steps_out(held)

    def admitted(self, held: Held) -> None:
        if held.request.interaction:
            interaction = _interaction(held)
            self._admissions[interaction] = self._admissions.get(interaction, 0) + 1
            self._admissions.move_to_end(interaction)
            self._judge(interaction)
            if len(self._admissions) > INTERACTIONS_KEPT_MAX:
                self._judge(self._admissions.popitem(last=False)[0])

    def returned(self, held: Held) -> None:
        """Its admission came to nothing."""
        interaction = _interaction(held)
        if interaction in self._admissions:
            self._admissions[interaction] -= 1
            if not self._admissions[interaction]:
                del self._admissions[interaction]
            self._judge(interaction)

    def fell(self, tenant: str) -> None:
        """Its counter is lower than it was."""
        self._tenants.fell(tenant)

    def _judge(self, interaction: Interaction) -> None:
        """Begun, or exhausted, or neither: all of it that waits goes to its tenant's line, or out of it."""
        under_way = 0 < self._admissions.get(interaction, 0) < self._stages_max
        if under_way == (interaction in self._under_way):
            return
        (self._under_way.add if under_way else self._under_way.remove)(interaction)
        for held in self._waiting.get(interaction, {}).values():
            (self._stands if under_way else self._steps_out)(held)

    def _stands(self, held: Held) -> None:
        tenant = held.request.tenant
        if tenant not in self._queues:
            self._queues[tenant] = ArrivalQueue()
            self._tenants.add(tenant)
        self._queues[tenant].add(held.place, held)

    def _steps_out(self, held: Held) -> None:
        tenant = held.request.tenant
        self._queues[tenant].remove(held.place)
        if not self._queues[tenant]:
            del self._queues[tenant]
            self._tenants.remove(tenant)


def _interaction(held: Held) -> Interaction:
    return held.request.tenant, held.request.interaction
