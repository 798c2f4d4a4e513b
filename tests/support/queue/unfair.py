"""Queue policies that are unfair on purpose: the checks of shares must reject them."""

from __future__ import annotations

from gpu_worker.policies.fairness.interface import RequestRecord
from gpu_worker.policies.fairness.vtc import VirtualTokenCounter


class FavouriteFirst(VirtualTokenCounter):
    """VTC, except that the waiting tenant with the first name is always next."""

    def _next_tenant(self) -> str | None:
        return min(self._queues, default=None)


class NearlyFair(VirtualTokenCounter):
    """VTC that does not charge every third prompt of tenant t0."""

    def _charge_prompt(self, record: RequestRecord) -> None:
        if record.request.tenant != "t0" or record.place % 3:
            super()._charge_prompt(record)
