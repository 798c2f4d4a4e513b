"""Virtual Clock: a tenant's theoretical arrival time alone decides, for what is guaranteed and for the surplus alike.

Source: Zhang, Virtual Clock (SIGCOMM 1990), with the bucket of the generic cell rate algorithm (ITU-T I.371), so that
it is the first of the gate's two clocks (clocks.py) and nothing else:

    order          the lowest tat of those who wait, ties by the arrival of the oldest request
    a dispatch     tat = max(tat, now - burst / rate) + cost / rate, whether in profile or not
    settlement     tat += (true - estimate) / the rate recorded at the dispatch
    `+cap`         the same, but tat never more than DEBT_MAX_S ahead of now after a dispatch

Units: cost in service units, rate in service units a second, burst in service units, tat in seconds; a weight is not
used. Deviations: the source stamps a request as it arrives and has no bucket; here tat moves at the dispatch, as the
gate's does, so what waits can be cancelled and corrected. A tenant without a rate has no clock: it goes after all that
have one, first come, first served among its like.

For comparison, not for use. What it borrowed of an idle pool a tenant pays for later, for as long as it borrowed; with
the cap, who is always at the cap is served request by request, whatever these cost; and where more is promised than
there is, the deepest bucket takes everything. Work conserving. O(log waiting tenants) a decision, amortized; no tenant
is forgotten.
"""

from __future__ import annotations

from functools import partial
from heapq import heapify, heappop, heappush
from math import fsum, inf

from dispatcher.policies.clocks import LEAD_MAX, Terms
from dispatcher.policies.orders.interface import (
    Decision,
    Dispatched,
    Queued,
    checked_cost,
    checked_slots,
    held_already,
    later,
    not_running,
    registered,
)

DEBT_MAX_S = 5.0
"""How far ahead of now the capped variant lets a tenant's clock run."""

SLACK = 64
"""Dead entries kept in the heap, beyond twice as many as live ones, before they are swept out."""

Entry = tuple[float, int, "Line"]
"""tat (infinite without a rate), arrival of the oldest request, and whose it is."""


class Line:
    """A tenant: its clock, and its requests that wait, by id, in order of arrival: (number of the arrival, cost)."""

    __slots__ = ("burst_s", "entry", "name", "rate_per_s", "tat", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.tat = -inf
        self.rate_per_s = self.burst_s = 0.0
        self.waiting: dict[str, tuple[int, float]] = {}
        self.entry: Entry | None = None

    def take(self, terms: Terms) -> None:
        self.rate_per_s = terms.rate_per_s
        self.burst_s = terms.burst / terms.rate_per_s if terms.rate_per_s else 0.0
        if not terms.rate_per_s:
            self.tat = -inf


class VirtualClock:
    """`lead_max` is taken as every order takes it, and not used. `debt_max_s` in seconds. Raises ValueError."""

    def __init__(self, slots: int, *, lead_max: float = LEAD_MAX, debt_max_s: float = inf) -> None:
        if not debt_max_s > 0:
            raise ValueError(f"debt_max_s must be a positive number of seconds, not {debt_max_s!r}")
        self._slots = checked_slots(slots)
        self._debt_max_s = debt_max_s
        self._now = -inf
        self._arrivals = 0
        self._settled = 0.0
        self._lines: dict[str, Line] = {}
        self._heap: list[Entry] = []
        self._waiting: dict[str, Line] = {}
        self._running: dict[str, Dispatched] = {}

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def reserved(self) -> float:
        return fsum(dispatched.cost for dispatched in self._running.values())

    @property
    def settled(self) -> float:
        return self._settled

    def waiting_of(self, tenant: str) -> int:
        line = self._lines.get(tenant)
        return 0 if line is None else len(line.waiting)

    def tat_of(self, tenant: str) -> float:
        """Its theoretical arrival time in seconds; of a tenant never seen, or without a rate, the distant past."""
        line = self._lines.get(tenant)
        return -inf if line is None else line.tat

    def arrive(self, tenant: str, invocation_id: str, cost: float, now: float) -> Decision:
        self._now = later(self._now, now)
        checked_cost(cost, "cost")
        if invocation_id in self._running or invocation_id in self._waiting:
            raise held_already(invocation_id)
        line = self._line(tenant)
        if len(self._running) < self._slots:
            return self._dispatch(line, invocation_id, cost)
        self._arrivals += 1
        line.waiting[invocation_id] = (self._arrivals, cost)
        self._waiting[invocation_id] = line
        if line.entry is None:
            self._place(line)
        return Queued(tenant, invocation_id, len(line.waiting))

    def settle(self, invocation_id: str, true_cost: float, now: float) -> Dispatched | None:
        self._now = later(self._now, now)
        checked_cost(true_cost, "true_cost")
        ended = self._running.pop(invocation_id, None)
        if ended is None:
            raise not_running(invocation_id)
        self._settled += true_cost
        line = self._lines[ended.tenant]
        if true_cost != ended.cost and ended.rate_per_s and line.rate_per_s:
            line.tat += (true_cost - ended.cost) / ended.rate_per_s
            self._place(line)
        return self._dispatch_next()

    def cancel(self, invocation_id: str, now: float) -> bool:
        self._now = later(self._now, now)
        line = self._waiting.pop(invocation_id, None)
        if line is None:
            return False
        del line.waiting[invocation_id]
        self._place(line)
        return True

    def set_slots(self, slots: int, now: float) -> tuple[Dispatched, ...]:
        self._now = later(self._now, now)
        self._slots = checked_slots(slots)
        return tuple(iter(self._dispatch_next, None))

    def set_terms(self, tenant: str, terms: Terms, now: float) -> None:
        self._now = later(self._now, now)
        line = self._line(tenant)
        line.take(terms)
        self._place(line)

    def set_capacity(self, capacity_per_s: float | None, now: float) -> None:
        self._now = later(self._now, now)

    def _line(self, tenant: str) -> Line:
        found = self._lines.get(tenant)
        if found is None:
            found = self._lines[tenant] = Line(tenant)
        return found

    def _place(self, line: Line) -> None:
        """One live entry where something waits, wherever the clock stands now; earlier ones die."""
        if not line.waiting:
            line.entry = None
            return
        arrival, _ = next(iter(line.waiting.values()))
        line.entry = (line.tat if line.rate_per_s else inf, arrival, line)
        heappush(self._heap, line.entry)
        if len(self._heap) > 2 * len(self._waiting) + SLACK:
            self._heap = [entry for entry in self._heap if entry[2].entry is entry]
            heapify(self._heap)

    def _dispatch_next(self) -> Dispatched | None:
        """The one due first into a free slot; None where either is missing."""
        if not self._waiting or len(self._running) >= self._slots:
            return None
        entry = heappop(self._heap)
        while entry[2].entry is not entry:
            entry = heappop(self._heap)
        line = entry[2]
        invocation_id = next(iter(line.waiting))
        _, cost = line.waiting.pop(invocation_id)
        del self._waiting[invocation_id]
        dispatched = self._dispatch(line, invocation_id, cost)
        self._place(line)
        return dispatched

    def _dispatch(self, line: Line, invocation_id: str, cost: float) -> Dispatched:
        in_profile, rate, now = False, line.rate_per_s, self._now
        if rate:
            in_profile = line.tat <= now
            line.tat = min(max(line.tat, now - line.burst_s) + cost / rate, now + self._debt_max_s)
        dispatched = Dispatched(line.name, invocation_id, cost, in_profile, rate)
        self._running[invocation_id] = dispatched
        return dispatched


registered("virtual-clock")(VirtualClock)
registered("virtual-clock+cap")(partial(VirtualClock, debt_max_s=DEBT_MAX_S))
