"""Two orders by cached prefixes that VTC with locality (locality.py) is compared with: LPM and DLPM.

Source: Locality-aware Fair Scheduling in LLM Serving (arXiv 2501.14312). Both look up each request that may be next,
without a bound, and a request may be overtaken for ever: they are for comparisons in the simulator.
"""

from __future__ import annotations

from gpu_worker.policies.fairness.baselines import FcfsPolicy
from gpu_worker.policies.fairness.drr import QUANTUM_MIN, DeficitRoundRobin
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.registry import register

_UNBOUNDED = 1_000_000_000


class LongestPrefixFirst(FcfsPolicy):
    """LPM: the request with the longest cached prefix is served first, whatever its tenant; of equal ones the first to
    arrive.

    Invariant: none. A tenant without cached prefixes waits until no other request has one. An engine that cannot look
    prefixes up serves first come, first served.
    """

    locality = True
    lookups_max = _UNBOUNDED

    def peek(self) -> QueueRequest | None:
        if self._lookups is None or not self._waiting:
            return super().peek()
        return self._lookups.longest(list(self._waiting.values())).request


register(LongestPrefixFirst, "lpm")


class DeficitLongestPrefixFirst(DeficitRoundRobin):
    """DLPM: the request with the longest cached prefix is served first among those of the tenants without debt. When
    each waiting tenant is in debt, each gets a quantum.

    Debts, rounds and the quantum Q are those of deficit round robin (drr.py). Invariant: as there, the counters of
    waiting tenants stay within VTC's bound + Q.

    Deviation: the paper charges no cached token. Here one costs `cached_fraction`, as under the other policies.
    """

    locality = True
    lookups_max = _UNBOUNDED

    def peek(self) -> QueueRequest | None:
        if self._lookups is None or not self._waiting:
            return super().peek()
        current = self._by_counter.lowest()
        assert current is not None  # noqa: S101
        free = [record for record in self._waiting.values() if self._rounds(record.request.tenant) <= current[0]]
        return self._lookups.longest(free).request


register(
    DeficitLongestPrefixFirst,
    "dlpm:QUANTUM",
    make=lambda spec: DeficitLongestPrefixFirst(spec.number(above=QUANTUM_MIN), spec.service),
    example="dlpm:512",
)
