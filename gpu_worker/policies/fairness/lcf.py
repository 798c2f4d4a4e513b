"""LCF, least counter first: VTC without the counter lift.

Source: Fairness in Serving Large Language Models (OSDI 2024), section 5.1. Charges, choice and units as in vtc.py:

    next    arg min c_i over the tenants with waiting requests; c_i is the service of tenant i since its first request

Invariant: none that bounds the service of waiting tenants. A tenant that was absent catches up on all service that it
did not ask for, at the cost of the other tenants. The paper uses LCF to show this; run it for comparison only.

Deviation: the paper keeps every counter for ever. Here the counters of the last COUNTERS_KEPT_MAX absent tenants are
kept; a tenant that is absent for longer restarts at 0, like a new tenant.
"""

from __future__ import annotations

from collections import OrderedDict

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from gpu_worker.policies.fairness.registry import register
from gpu_worker.policies.fairness.vtc import VirtualTokenCounter
from gpu_worker.policies.request import QueueRequest

COUNTERS_KEPT_MAX = 10_000


class LeastCounterFirst(VirtualTokenCounter):
    def __init__(self, service: ServiceFunction = WEIGHTED_TOKENS) -> None:
        super().__init__(service)
        self._absent: OrderedDict[str, None] = OrderedDict()

    def _tenant_joins(self, request: QueueRequest) -> None:
        self._absent.pop(request.tenant, None)

    def _tenant_absent(self, tenant: str) -> None:
        self._absent[tenant] = None
        if len(self._absent) > COUNTERS_KEPT_MAX:
            self._counters.drop(self._absent.popitem(last=False)[0])


register(LeastCounterFirst, "lcf")
