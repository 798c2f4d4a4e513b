"""The service that each tenant has received, for reports and metrics; no decision depends on it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

ABSENT_KEPT_MAX = 10_000
"""Absent tenants that are remembered. Beyond it, the tenant absent for the longest time restarts from zero."""


@dataclass(slots=True)
class TenantService:
    """Tokens, and service in the units of h; weights are not applied."""

    input_tokens: int = 0
    output_tokens: int = 0
    service: float = 0.0

    def __add__(self, other: TenantService) -> TenantService:
        tokens = self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens
        return TenantService(*tokens, self.service + other.service)


class ServiceByTenant:
    """The service of each tenant. A tenant is present while at least one of its requests waits or runs."""

    def __init__(self) -> None:
        self._requests: dict[str, int] = {}
        self._present: dict[str, TenantService] = {}
        self._absent: OrderedDict[str, TenantService] = OrderedDict()

    def add_request(self, tenant: str) -> None:
        count = self._requests.get(tenant, 0)
        self._requests[tenant] = count + 1
        if not count:
            self._present[tenant] = self._absent.pop(tenant, TenantService())

    def remove_request(self, tenant: str) -> bool:
        """Return whether the tenant is still present."""
        self._requests[tenant] -= 1
        if self._requests[tenant]:
            return True
        del self._requests[tenant]
        received = self._present.pop(tenant)
        if received.input_tokens or received.output_tokens:
            self._absent[tenant] = received
        if len(self._absent) > ABSENT_KEPT_MAX:
            self._absent.popitem(last=False)
        return False

    def is_present(self, tenant: str) -> bool:
        return tenant in self._requests

    def add(self, tenant: str, service: float, input_tokens: int, output_tokens: int) -> None:
        """Add to what a present tenant received; a refund is negative."""
        received = self._present[tenant]
        received.service += service
        received.input_tokens += input_tokens
        received.output_tokens += output_tokens

    def by_tenant(self) -> dict[str, TenantService]:
        """Return a copy."""
        return {tenant: replace(received) for tenant, received in (self._absent | self._present).items()}
