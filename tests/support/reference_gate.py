"""The two clocks as slowly as they are defined: clocks.py's own functions, every list scanned, nothing forgotten."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from dispatcher.policies.clocks import Charge, Clocks, Step, Terms, debit, in_profile, lift, rate_scale, settlement
from dispatcher.policies.orders.interface import Decision, Dispatched, Queued


@dataclass
class Line:
    """A tenant: its clocks, and its requests as (arrival, id, cost)."""

    clocks: Clocks = field(default_factory=lambda: Clocks(-inf, 0.0))
    waiting: list[tuple[int, str, float]] = field(default_factory=list)
    running: int = 0


def moved(step: Step, old: float) -> float:
    new = step.apply(old)
    assert new is not None, f"{old} is outside the branch of {step}"
    return new


class ReferenceGate:
    def __init__(self, slots: int, *, lead_max: float) -> None:
        self.slots, self.lead_max = slots, lead_max
        self.virtual_time = 0.0
        self.capacity: float | None = None
        self.arrivals = 0
        self.terms: dict[str, Terms] = {}
        self.lines: dict[str, Line] = {}
        self.charges: dict[str, tuple[str, Charge]] = {}

    def arrive(self, tenant: str, invocation_id: str, cost: float, now: float) -> Decision:
        line = self.lines.setdefault(tenant, Line())
        if len(self.charges) < self.slots:
            return self._dispatch(tenant, invocation_id, cost, now, in_line=False)
        if not line.waiting:
            raised = moved(lift(line.clocks, self.virtual_time, lead_max=self.lead_max), line.clocks.vft)
            line.clocks = Clocks(line.clocks.tat, raised)
        self.arrivals += 1
        line.waiting.append((self.arrivals, invocation_id, cost))
        return Queued(tenant, invocation_id, len(line.waiting))

    def settle(self, invocation_id: str, true_cost: float, now: float) -> Dispatched | None:
        tenant, charge = self.charges.pop(invocation_id)
        line = self.lines[tenant]
        tat, vft = settlement(charge, true_cost)
        line.clocks = Clocks(moved(tat, line.clocks.tat), moved(vft, line.clocks.vft))
        line.running -= 1
        if len(self.charges) < self.slots and not any(other.waiting for other in self.lines.values()):
            self.virtual_time = max(self.virtual_time, line.clocks.vft)
        return self._next(now)

    def cancel(self, invocation_id: str, now: float) -> bool:
        for line in self.lines.values():
            kept = [waiting for waiting in line.waiting if waiting[1] != invocation_id]
            if len(kept) < len(line.waiting):
                line.waiting = kept
                return True
        return False

    def set_slots(self, slots: int, now: float) -> tuple[Dispatched, ...]:
        self.slots = slots
        return tuple(iter(lambda: self._next(now), None))

    def set_terms(self, tenant: str, terms: Terms, now: float) -> None:
        self.terms[tenant] = terms

    def set_capacity(self, capacity_per_s: float | None, now: float) -> None:
        self.capacity = capacity_per_s

    def _next(self, now: float) -> Dispatched | None:
        waiting = {name: line for name, line in self.lines.items() if line.waiting}
        if not waiting or len(self.charges) >= self.slots:
            return None

        def due(name: str) -> tuple[bool, float, int]:
            line = waiting[name]
            return (not in_profile(line.clocks, self._terms(name), now), line.clocks.vft, line.waiting[0][0])

        tenant = min(waiting, key=due)
        _, invocation_id, cost = waiting[tenant].waiting[0]
        dispatched = self._dispatch(tenant, invocation_id, cost, now, in_line=True)
        del waiting[tenant].waiting[0]
        return dispatched

    def _dispatch(self, tenant: str, invocation_id: str, cost: float, now: float, *, in_line: bool) -> Dispatched:
        line = self.lines[tenant]
        others = [other.clocks.vft for name, other in self.lines.items() if other.waiting and name != tenant]
        line.running += 1
        scale = rate_scale(self._promised_per_s(), self.capacity)
        charged = debit(
            line.clocks, self._terms(tenant), cost, now, self.virtual_time,
            rate_scale=scale, lead_max=self.lead_max, in_line=in_line,
        )  # fmt: skip
        line.clocks = Clocks(moved(charged.tat, line.clocks.tat), moved(charged.vft, line.clocks.vft))
        self.virtual_time = max(self.virtual_time, min([charged.start_stamp, *others]))
        charge = charged.charge
        self.charges[invocation_id] = (tenant, charge)
        return Dispatched(tenant, invocation_id, cost, charge.in_profile, charge.rate_per_s, charge.weight)

    def _promised_per_s(self) -> float:
        active = [name for name, line in self.lines.items() if line.waiting or line.running]
        return sum(self._terms(name).rate_per_s for name in active)

    def _terms(self, tenant: str) -> Terms:
        return self.terms.get(tenant, Terms())
