"""The theorem monitor's own record of what each tenant has received, over its weight, and of VTC's counters.

It is kept apart from the policy's counters, so that a defect in either shows.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Account:
    """One tenant. Amounts in service units over weight. `lifts`: by how much its counter exceeds what it received."""

    number: int
    received: float = 0.0
    per_step: float = 0.0
    """What its running requests receive in each decode step."""
    since_step: int = 0
    running: int = 0
    waiting: int = 0
    lifts: float = 0.0
    weight: float = 1.0
    """The lowest weight of its requests."""

    def value(self, step: int) -> float:
        """Return what the tenant has received by this step."""
        return self.received + self.per_step * (step - self.since_step)

    def add(self, amount: float, per_step: float, step: int) -> None:
        """Add `amount` at once, and from now on `per_step` more in each step."""
        self.received = self.value(step) + amount
        self.since_step = step
        self.per_step = self.per_step + per_step if self.running else 0.0


class Accounts:
    """`step`: decode steps so far. `all`: the accounts by number, in the order of the tenants' first requests."""

    def __init__(self) -> None:
        self.step = 0
        self.all: list[Account] = []
        self._by_tenant: dict[str, Account] = {}
        self._last_left: Account | None = None

    def of(self, tenant: str, weight: float) -> tuple[Account, bool]:
        """Return the tenant's account, and whether it is new."""
        account = self._by_tenant.get(tenant)
        if account is not None:
            account.weight = min(account.weight, weight)
            return account, False
        account = self._by_tenant[tenant] = Account(len(self.all), weight=weight)
        self.all.append(account)
        return account, True

    def values(self) -> list[float]:
        step = self.step
        return [account.received + account.per_step * (step - account.since_step) for account in self.all]

    def counter(self, account: Account) -> float:
        return account.value(self.step) + account.lifts

    def waiting_counters(self) -> list[float]:
        return [self.counter(account) for account in self.all if account.waiting]

    def lift(self, account: Account) -> None:
        """Lift the counter (VTC, algorithm 2, lines 8 to 13). Called before a tenant with nothing waiting enqueues."""
        waiting = self.waiting_counters()
        level = min(waiting) if waiting else None if self._last_left is None else self.counter(self._last_left)
        if level is not None:
            account.lifts += max(0.0, level - self.counter(account))

    def left_queue(self, account: Account) -> None:
        self._last_left = account
