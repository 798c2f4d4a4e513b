"""One request of a simulated run, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.policies.tiers import Tier
from headgate.workloads.traces.files import Arrival

NEVER = -1.0


@dataclass(slots=True, eq=False)
class SimRequest:
    """Times in seconds of the run. `release_s`: when it was sent; for a later stage of an interaction that is after
    the stage before it was answered, so not always what the workload says."""

    request_id: str
    arrival: Arrival
    release_s: float
    weight: float = 1.0
    admitted_s: float = NEVER
    first_token_s: float = NEVER
    finish_s: float = NEVER
    rejected: str | None = None
    """Why it was refused: `rate` (by the policy), `too_large` (for the pool), `unsent` (an earlier stage of
    its interaction was refused), `dropped` and `exhausted` (preemptive.py), or what the front says."""

    @property
    def tenant(self) -> str:
        return self.arrival.tenant

    @property
    def tier(self) -> Tier:
        return Tier.STANDARD if self.arrival.tier is None else Tier(self.arrival.tier)

    @property
    def served(self) -> bool:
        return self.finish_s >= 0.0

    @property
    def ttft_s(self) -> float:
        return self.first_token_s - self.release_s

    @property
    def latency_s(self) -> float:
        return self.finish_s - self.release_s
