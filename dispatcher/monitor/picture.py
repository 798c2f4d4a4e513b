"""The state of a shard at one moment, for an operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dispatcher.model.usage import TenantRow
from dispatcher.monitor.recent import IDLE, WINDOW_S, TenantRecent

LATE_S = 10.0
"""A call that its tenant's guarantee covers may wait this long: until a running call ends and frees a slot."""


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
    """`waits_since`: when the first of its waiting calls arrived, in Unix seconds; None if none waits."""

    row: TenantRow
    recent: TenantRecent
    waits_since: float | None = None

    @property
    def is_below_guarantee(self) -> bool:
        """Whether its guarantee was not kept: a call waited for LATE_S while the tenant had credit for it, and what the
        tenant got in the last minute, with its running calls, is less than its guarantee.

        A tenant that asks for less than its guarantee has credit too, but its calls do not wait so long. A tenant
        without credit has had its guarantee, and waits behind its own calls.
        """
        row = self.row
        if not row.rate_per_s or self.waits_since is None or row.credit is None:
            return False
        had_credit = row.credit >= min(row.burst, LATE_S * row.rate_per_s)
        given = self.recent.service_per_s * WINDOW_S + row.reserved
        return had_credit and row.at - self.waits_since > LATE_S and given < row.rate_per_s * WINDOW_S


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

    def tenant(self, identity: str) -> TenantPicture | None:
        """Return an active tenant; None if it is idle."""
        return next((tenant for tenant in self.tenants if tenant.row.tenant == identity), None)


def tenants_of(
    rows: Sequence[TenantRow], recent: Mapping[str, TenantRecent], waits_since: Mapping[str, float], now: float
) -> tuple[TenantPicture, ...]:
    """Return the tenants by name, each with its credit at `now`. `waits_since`: the first arrivals of waiting calls."""
    by_name = sorted(rows, key=lambda row: row.tenant)
    return tuple(
        TenantPicture(_at(row, now), recent.get(row.tenant, IDLE), waits_since.get(row.tenant)) for row in by_name
    )


def _at(row: TenantRow, now: float) -> TenantRow:
    """Return the row with the credit that its tenant has earned since the last entry."""
    if now <= row.at:
        return row
    if row.credit is None:
        return replace(row, at=now)
    return replace(row, credit=min(row.burst, row.credit + (now - row.at) * row.rate_per_s), at=now)
