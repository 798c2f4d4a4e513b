"""First come, first served: the baseline, fair to requests and to no tenant.

Source: the baseline of BWFQ (2025), section 4.1. An invocation goes at once if a slot is free (then none waits); else
it waits for all that came before it, of any tenant. Work conserving.
"""

from __future__ import annotations

from dispatcher.policies.clocks import LEAD_MAX
from dispatcher.policies.old_orders.interface import registered
from dispatcher.policies.old_orders.single_queue import SingleQueue


@registered("fcfs")
class FirstComeFirstServed(SingleQueue):
    """All orders take `lead_max`; this one does not use it."""

    def __init__(self, slots: int, *, lead_max: float = LEAD_MAX) -> None:
        super().__init__(slots)

    def _goes_at_once(self, tenant: str) -> bool:
        return True

    def _priority(self, tenant: str) -> float:
        return 0.0

    def _spend(self, tenant: str) -> None:
        pass
