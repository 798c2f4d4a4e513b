"""A queue policy that is unfair on purpose: the checks of shares must fail it."""

from __future__ import annotations

from gpu_worker.policies.fairness.vtc import VirtualTokenCounter
from gpu_worker.policies.request import RequestRecord


class FavouriteFirst(VirtualTokenCounter):
    """VTC, but the tenant that comes first by name goes before all others whenever it has something waiting."""

    def _next_tenant(self) -> str | None:
        return min(self._queues, default=None)


class NearlyFair(VirtualTokenCounter):
    """VTC that does not charge one prompt in three of a certain tenant."""

    def _charge_prompt(self, record: RequestRecord) -> None:
        if record.request.tenant != "t0" or record.place % 3:
            super()._charge_prompt(record)
