"""An order that is unfair on purpose: the checks of fairness must fail it."""

from __future__ import annotations

from dispatcher.policies.old_orders.single_queue import SingleQueue


class Favourite(SingleQueue):
    """First come, first served, but for one tenant that goes before all others."""

    def __init__(self, slots: int, *, favourite: str) -> None:
        super().__init__(slots)
        self._favourite = favourite

    def _goes_at_once(self, tenant: str) -> bool:
        return True

    def _priority(self, tenant: str) -> float:
        return 0.0 if tenant == self._favourite else 1.0

    def _spend(self, tenant: str) -> None:
        pass
