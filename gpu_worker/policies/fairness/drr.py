"""Adapted deficit round robin: in each round every tenant in debt gets a quantum, and a tenant without debt is served
until it is in debt again.

Source: Fairness in Serving Large Language Models (OSDI 2024), Appendix C.2. Units: service over weight, also for the
quantum Q. In the paper tenant i has a deficit counter C_i, which may be negative:

    a round visits the tenants in turn; where C_i <= 0: C_i += Q; while C_i > 0: its next request, C_i -= h(input, 0)
    an output token: C_i -= its service;   with nothing waiting, C_i is refilled only up to (0, Q]

How it is computed: no round is simulated. Let c_i be the charges of tenant i (vtc.py) and r the number of rounds so
far. Then C_i = Q r - c_i, so i is without debt from round floor(c_i / Q) + 1 on, and the next tenant is

    arg min floor(c_i / Q) over the tenants with waiting requests, ties within a round by name

This takes O(log tenants) for any quantum, while the paper's loop takes cost / Q rounds. The refill limit (0, Q] is a
lift: a tenant that joins in round r and was without debt since round r_i < r starts with the same C_i if c_i rises by
Q (r - r_i).

Invariant: as Q goes to 0 this becomes arg min c_i with the lift of VTC, the same order except for ties within Q. In
general the counters of waiting tenants stay within VTC's bound + Q.

Deviations: rounds pass only while a request waits. With an empty queue the round is that of the last tenant to leave
it, as in VTC's lines 8 to 10; the paper's loop would forgive all debts in that instant. A tenant that is forgotten
(vtc.py) is forgiven at most one quantum.
"""

from __future__ import annotations

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from gpu_worker.policies.fairness.accounting import LazyMinHeap
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.registry import register
from gpu_worker.policies.fairness.vtc import VirtualTokenCounter

QUANTUM_MIN = 1e-6
"""Below it, neighbouring rounds of a counter around 10^9 are no longer different numbers."""


class DeficitRoundRobin(VirtualTokenCounter):
    """`quantum`: service units per round for a tenant of weight 1, above QUANTUM_MIN."""

    def __init__(self, quantum: float, service: ServiceFunction = WEIGHTED_TOKENS) -> None:
        super().__init__(service)
        self._quantum = quantum
        self._by_counter = LazyMinHeap(self._rounds)
        self._aside_by_counter = LazyMinHeap(self._rounds)

    def steps_of_head(self) -> float:
        return 0

    def _rounds(self, tenant: str) -> float:
        """Return the number of rounds for which the tenant is in debt, a whole number."""
        return self._counters.value(tenant) // self._quantum

    def _round(self) -> float:
        """Return the current round."""
        lowest = self._lowest_waiting()
        if lowest is not None:
            return lowest
        return 0.0 if self._last_left is None else self._rounds(self._last_left)

    def _tenant_joins(self, request: QueueRequest) -> None:
        missed = self._round() - self._rounds(request.tenant)
        if missed > 0:
            self._counters.lift(request.tenant, self.counter(request.tenant) + self._quantum * missed)

    def _lift_level(self) -> float:
        """Return the end of the current round: an absent tenant with a counter up to it is forgotten."""
        return self._quantum * (self._round() + 1)


register(
    DeficitRoundRobin,
    "drr:QUANTUM",
    make=lambda spec: DeficitRoundRobin(spec.number(above=QUANTUM_MIN), spec.service),
    example="drr:512",
)
