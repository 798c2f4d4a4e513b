"""LCF, least counter first: VTC without the counter lift.

Source: Fairness in Serving Large Language Models (OSDI 2024), section 5.1. Charges and pick as in vtc.py, units too:

    next    arg min c_i over the tenants with something waiting; c_i is what i has received since it was first seen

Invariant: none that bounds the service of tenants who wait. Who was away catches up on all that it did not ask for, at
the cost of those who were here: that is what the paper shows with it, and why nothing but a comparison should run it.

Deviation: the paper keeps a counter for ever. Here those of the last COUNTERS_KEPT_MAX tenants to go are kept; one that
is gone longer starts at 0 again, as LCF treats a new one.
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

    def _joins(self, request: QueueRequest) -> None:
        self._absent.pop(request.tenant, None)

    def _tenant_gone(self, tenant: str) -> None:
        self._absent[tenant] = None
        if len(self._absent) > COUNTERS_KEPT_MAX:
            self._counters.drop(self._absent.popitem(last=False)[0])


register(LeastCounterFirst, "lcf")
