"""Adapted deficit round robin: each round every tenant in debt is given a quantum, and one that is out of debt is
served until it is in debt again.

Source: Fairness in Serving Large Language Models (OSDI 2024), Appendix C.2. Units: service over weight, of the quantum
Q too. There, tenant i has C_i, which may be negative:

    a round visits the tenants in turn; where C_i <= 0: C_i += Q; while C_i > 0: its next request, C_i -= h(input, 0)
    an output token: C_i -= its service;   with nothing waiting, C_i is refilled only up to (0, Q]

How it is computed: no rounds are played. Let c_i be what i was charged (vtc.py) and r the refills since everybody
started: C_i = Q r - c_i, so i is out of debt from round floor(c_i / Q) + 1 on, and next is

    arg min floor(c_i / Q) over the tenants with something waiting, in a round by name

which is O(log tenants) whatever the quantum, where the paper's loop would go round cost / Q times. Not being refilled
beyond (0, Q] is a lift: a tenant that joins in round r, out of debt since round r_i < r, comes with the same C_i, that
is c_i += Q (r - r_i).

Invariant: with Q -> 0 this is arg min c_i and the lift of VTC, the same order but for ties within Q. In general the
counters of waiting tenants stay within VTC's bound + Q.

Deviations: rounds pass while somebody waits. With an empty queue the round is that of the last tenant to leave it, as
in VTC's lines 8 to 10; the paper's loop would forgive all debts in that instant. A tenant that is forgotten (vtc.py)
is forgiven at most a quantum.
"""

from __future__ import annotations

from dispatcher.policies.service import WEIGHTED_TOKENS, ServiceFunction
from gpu_worker.policies.fairness.accounting.lazy_min_heap import LazyMinHeap
from gpu_worker.policies.fairness.registry import register
from gpu_worker.policies.fairness.vtc import VirtualTokenCounter
from gpu_worker.policies.request import QueueRequest

QUANTUM_MIN = 1e-6
"""Below it, rounds could no longer be told apart in a counter of 10^9."""


class DeficitRoundRobin(VirtualTokenCounter):
    """`quantum`: service units a round, for a tenant of weight 1; above QUANTUM_MIN."""

    def __init__(self, quantum: float, service: ServiceFunction = WEIGHTED_TOKENS) -> None:
        super().__init__(service)
        self._quantum = quantum
        self._by_counter = LazyMinHeap(self._rounds)

    def _rounds(self, tenant: str) -> float:
        """After how many rounds it is still in debt: a whole number."""
        return self._counters.value(tenant) // self._quantum

    def _round(self) -> float:
        lowest = self._by_counter.lowest()
        if lowest is not None:
            return lowest[0]
        return 0.0 if self._last_left is None else self._rounds(self._last_left)

    def _joins(self, request: QueueRequest) -> None:
        missed = self._round() - self._rounds(request.tenant)
        if missed > 0:
            self._counters.lift(request.tenant, self.counter(request.tenant) + self._quantum * missed)

    def _lift_level(self) -> float:
        """The end of the round: who is gone and not above it is forgotten."""
        return self._quantum * (self._round() + 1)


register(
    DeficitRoundRobin,
    "drr:QUANTUM",
    make=lambda spec: DeficitRoundRobin(spec.number(above=QUANTUM_MIN), spec.service),
    example="drr:512",
)
