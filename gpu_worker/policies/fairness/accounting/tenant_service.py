"""What each tenant has received: figures for people, on which no decision depends. Bounded."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import chain

RECEIVED_KEPT_MAX = 10_000
"""Tenants that are gone and whose figures are kept; beyond it, those gone longest start from zero when they return."""


@dataclass(slots=True)
class TenantService:
    """Tokens, and service in h's units, weights not applied."""

    input_tokens: int = 0
    output_tokens: int = 0
    service: float = 0.0

    def __add__(self, other: TenantService) -> TenantService:
        tokens = self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens
        return TenantService(*tokens, self.service + other.service)


class ServiceByTenant:
    def __init__(self) -> None:
        self._requests: dict[str, int] = {}
        self._present: dict[str, TenantService] = {}
        self._absent: OrderedDict[str, TenantService] = OrderedDict()

    def arrived(self, tenant: str) -> None:
        """One more request of the tenant is here."""
        count = self._requests.get(tenant, 0)
        self._requests[tenant] = count + 1
        if not count:
            self._present[tenant] = self._absent.pop(tenant, TenantService())

    def gone(self, tenant: str) -> bool:
        """One less; whether any is left."""
        self._requests[tenant] -= 1
        if self._requests[tenant]:
            return True
        del self._requests[tenant]
        received = self._present.pop(tenant)
        if received.input_tokens or received.output_tokens:
            self._absent[tenant] = received
        if len(self._absent) > RECEIVED_KEPT_MAX:
            self._absent.popitem(last=False)
        return False

    def present(self, tenant: str) -> bool:
        return tenant in self._requests

    def add(self, tenant: str, service: float, input_tokens: int, output_tokens: int) -> None:
        received = self._present[tenant]
        received.service += service
        received.input_tokens += input_tokens
        received.output_tokens += output_tokens

    def by_tenant(self) -> dict[str, TenantService]:
        return {tenant: replace(service) for tenant, service in chain(self._absent.items(), self._present.items())}
