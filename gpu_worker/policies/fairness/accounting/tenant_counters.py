"""A counter for each tenant that rises with every decode step while requests of the tenant run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class _Pace:
    """How fast the counter of a tenant with running requests rises. The counter is up to date at `since_step`."""

    requests: int
    per_step: float
    since_step: int


class TenantCounters:
    """Counters in service units over weight. `step`: decode steps so far, which the owner increments.

    A decode step costs nothing: a counter is brought up to date only when it is read or changed.
    """

    __slots__ = ("_paces", "_values", "step")

    def __init__(self) -> None:
        self.step = 0
        self._values: dict[str, float] = {}
        self._paces: dict[str, _Pace] = {}

    def __len__(self) -> int:
        return len(self._values)

    def value(self, tenant: str) -> float:
        """Return the tenant's counter; 0 if it has none."""
        value = self._values.get(tenant, 0.0)
        pace = self._paces.get(tenant)
        return value if pace is None else value + pace.per_step * (self.step - pace.since_step)

    def add(self, tenant: str, amount: float) -> None:
        self._values[tenant] = self._values.get(tenant, 0.0) + amount

    def lift(self, tenant: str, level: float) -> None:
        """Raise the counter to at least `level`."""
        self._settle(tenant)
        self._values[tenant] = max(self._values.get(tenant, 0.0), level)

    def run(self, tenant: str, per_step: float) -> None:
        """Add `per_step` to the counter at every step from now on, for one more running request."""
        pace = self._settle(tenant)
        if pace is None:
            self._paces[tenant] = _Pace(1, per_step, self.step)
        else:
            pace.requests += 1
            pace.per_step += per_step

    def stop(self, tenant: str, per_step: float) -> None:
        """Undo a `run` of the same `per_step`: the request no longer runs."""
        self._settle(tenant)
        pace = self._paces[tenant]
        pace.requests -= 1
        pace.per_step -= per_step
        if not pace.requests:
            del self._paces[tenant]

    def keep(self, wanted: Callable[[str, float], bool]) -> None:
        """Drop the counters that are not wanted. None of their tenants may have a running request."""
        self._values = {tenant: value for tenant, value in self._values.items() if wanted(tenant, value)}

    def drop(self, tenant: str) -> None:
        """Drop the counter of a tenant without running requests."""
        self._values.pop(tenant, None)

    def _settle(self, tenant: str) -> _Pace | None:
        """Bring the tenant's counter up to date, and return its pace."""
        pace = self._paces.get(tenant)
        if pace is not None and pace.since_step != self.step:
            self._values[tenant] = self._values.get(tenant, 0.0) + pace.per_step * (self.step - pace.since_step)
            pace.since_step = self.step
        return pace
