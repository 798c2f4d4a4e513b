"""The state of a shard at one moment, for an operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dispatcher.model.usage import TenantRow
from dispatcher.monitor.recent import IDLE, TenantRecent


@dataclass(frozen=True, slots=True)
class WorkerPicture:
    """A worker in the log. `service_per_s`: its measured capacity in service units a second, 0 if unknown."""

    worker: str
    url: str
    model: str
    state: str
    slots: int
    running: int
    service_per_s: float
    bytes_per_token: float


@dataclass(frozen=True, slots=True)
class TenantPicture:
    row: TenantRow
    recent: TenantRecent


@dataclass(frozen=True, slots=True)
class Picture:
    """The state after all entries below `position`. `at`: Unix seconds of the last entry, 0 if there is none."""

    position: int
    at: float
    leader: str
    """The address of the process that decides for the others; empty if there is none."""
    epoch: int
    """The number of takeovers so far."""
    tenants: tuple[TenantPicture, ...]
    workers: tuple[WorkerPicture, ...]

    @property
    def capacity_per_s(self) -> float:
        return sum(worker.service_per_s for worker in self.workers)

    @property
    def guaranteed_per_s(self) -> float:
        """The sum of the active tenants' guaranteed rates, in service units a second."""
        return sum(tenant.row.rate_per_s for tenant in self.tenants)

    def tenant(self, name: str) -> TenantPicture | None:
        """Return an active tenant; None if it is idle."""
        return next((tenant for tenant in self.tenants if tenant.row.tenant == name), None)


def tenants_of(rows: Sequence[TenantRow], recent: dict[str, TenantRecent], now: float) -> tuple[TenantPicture, ...]:
    """Return the tenants by name, each with its credit at `now`."""
    by_name = sorted(rows, key=lambda row: row.tenant)
    return tuple(TenantPicture(_at(row, now), recent.get(row.tenant, IDLE)) for row in by_name)


def _at(row: TenantRow, now: float) -> TenantRow:
    """Return the row with the credit that its tenant has earned since the last entry."""
    if row.credit is None or now <= row.at:
        return row
    return replace(row, credit=min(row.burst, row.credit + (now - row.at) * row.rate_per_s), at=now)
