"""Start-time fair queueing alone: waiting tenants share by weight, and no tenant has a guarantee.

Source: Goyal, Vin and Cheng, Start-time Fair Queueing (SIGCOMM 1996), section 2: a request's start tag is
max(V, finish tag of the one before it), its finish tag the start tag + cost / weight, the lowest start tag goes first,
and V is the start tag of the one dispatched. Service functions and settlement as in clocks.py.

It is the two-clock gate without its first clock: without a rate no tenant is ever in profile, so vft decides alone. A
lead has no bound, because only a guarantee puts a tenant far ahead of V. One difference from
the source: V also rises at a settlement that leaves a slot free (bwfq.py), where the source waits until all are idle.
"""

from __future__ import annotations

from math import inf

from dispatcher.policies.clocks import LEAD_MAX, Share
from dispatcher.policies.old_orders.bwfq import TwoClocks
from dispatcher.policies.old_orders.interface import registered


@registered("sfq")
class StartTimeFairQueueing(TwoClocks):
    """All orders take `lead_max`; this one does not use it."""

    def __init__(self, slots: int, *, lead_max: float = LEAD_MAX) -> None:
        super().__init__(slots, lead_max=inf)

    def set_share(self, tenant: str, share: Share, now: float) -> None:
        super().set_share(tenant, Share(weight=share.weight), now)
