"""The tenants that the two-clock gate remembers: their shares, and when it forgets them. bwfq.py decides.

Guarantees are scaled down together while those of the active tenants exceed nine tenths of the measured capacity
(clocks.rate_scale). A tenant with nothing waiting or running, a full bucket and no lead (clocks.is_forgettable) behaves
like a new one. A tenant that becomes idle joins a rotating queue; its head is checked when a tenant becomes idle or is
new. So there are two checks for each new tenant, and the queue cannot outgrow the tenants worth keeping. No decision
depends on it.
"""

from __future__ import annotations

from collections import deque
from math import inf

from dispatcher.policies.clocks import Clocks, Share, rate_scale
from dispatcher.policies.old_orders.bwfq_heaps import WaitingTenants
from dispatcher.policies.old_orders.bwfq_queue import Tenant
from dispatcher.policies.old_orders.interface import later

LONG_AGO_S = -1.7e308


class RememberedTenants(WaitingTenants):
    """`forget` False keeps all tenants for ever, for the test that forgetting changes no decision."""

    def __init__(self, *, forget: bool) -> None:
        super().__init__(LONG_AGO_S)
        self._forget = forget
        self._virtual_time = 0.0
        self._capacity_per_s: float | None = None
        self._promised_per_s = 0.0
        self._promised_to = 0
        self._scale = 1.0
        self._share: dict[str, Share] = {}
        self._tenants: dict[str, Tenant] = {}
        self._idle: deque[Tenant] = deque()

    @property
    def rate_scale(self) -> float:
        """The factor on guaranteed rates, 0 < factor <= 1; below 1 while the active tenants are overbooked."""
        return self._scale

    @property
    def tenants(self) -> int:
        """The number of remembered tenants."""
        return len(self._tenants)

    def clocks_of(self, tenant: str) -> Clocks:
        """Return the tenant's two numbers; those of a new tenant if it was forgotten."""
        found = self._tenants.get(tenant)
        return Clocks(-inf, 0.0) if found is None else Clocks(found.tat, found.vft)

    def set_share(self, tenant: str, share: Share, now: float) -> None:
        self._now = later(self._now, now)
        self._share[tenant] = share
        found = self._tenants.get(tenant)
        if found is None:
            return
        active = found.running > 0 or found.head is not None
        if active and found.rate_per_s:
            self._promise(-found.rate_per_s, -1)
        forgettable = found.is_forgettable(self._now, self._virtual_time)
        found.take(share)
        if active and found.rate_per_s:
            self._promise(found.rate_per_s, 1)
        if not active and forgettable:
            found.forget()
        if found.head is not None:
            self._place(found, found.head)

    def set_capacity(self, capacity_per_s: float | None, now: float) -> None:
        if capacity_per_s is not None and not 0 < capacity_per_s < inf:
            raise ValueError(f"capacity_per_s must be a positive number or None, not {capacity_per_s!r}")
        self._now = later(self._now, now)
        self._capacity_per_s = capacity_per_s
        self._scale = rate_scale(self._promised_per_s, capacity_per_s)

    def _promise(self, rate_per_s: float, tenants: int) -> None:
        """Add a guarantee that becomes active (negative: inactive). Rates shrink while too much is promised."""
        self._promised_to += tenants
        self._promised_per_s = self._promised_per_s + rate_per_s if self._promised_to else 0.0
        if self._capacity_per_s is not None:
            self._scale = rate_scale(self._promised_per_s, self._capacity_per_s)

    def _activate(self, tenant: Tenant) -> None:
        """Activate a tenant that had no request here. Its bucket stays at most full if its share changes later."""
        floor = self._now - tenant.burst_s
        if tenant.tat < floor:
            tenant.tat = floor
        self._promise(tenant.rate_per_s, 1)

    def _fell_idle(self, tenant: Tenant) -> None:
        if tenant.rate_per_s:
            self._promise(-tenant.rate_per_s, -1)
        if self._forget:
            if not tenant.in_idle:
                tenant.in_idle = True
                self._idle.append(tenant)
            self._check_idle()

    def _check_idle(self) -> None:
        """Forget the idle tenant that was checked longest ago, or move it to the end."""
        idle = self._idle
        if not idle:
            return
        tenant = idle.popleft()
        if tenant.running or tenant.head is not None:
            tenant.in_idle = False
        elif tenant.vft <= self._virtual_time and tenant.is_forgettable(self._now, self._virtual_time):
            del self._tenants[tenant.name]
        else:
            idle.append(tenant)
