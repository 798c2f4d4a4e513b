"""One request of a simulated run, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.policies.tiers import Tier
from headgate.workloads.arrivals import Arrival

NEVER = -1.0


@dataclass(slots=True, eq=False)
class SimRequest:
    """Times in seconds of the run. `release_s`: when the request was sent. A later stage of an interaction is sent
    after the stage before it was answered, which may be later than its arrival in the workload."""

    request_id: str
    arrival: Arrival
    release_s: float
    weight: float = 1.0
    admitted_s: float = NEVER
    first_token_s: float = NEVER
    finish_s: float = NEVER
    rejected: str | None = None
    """Why the request was not served: `rate` (refused by the policy), `too_large` (for the pool), `unsent` (an earlier
    stage of its interaction was refused), `dropped` or `exhausted` (ended early by the paged engine), or the reason of
    a gate, shedding or throttling before the engine (gates/)."""
    generated_tokens: int = 0
    """Output tokens when the engine ended it early."""

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
    def charged_tokens(self) -> tuple[int, int]:
        """Input and output tokens that the tenant pays for: all of a served request, and of one that the engine ended
        early what it had generated, or nothing before its first token."""
        if self.rejected is None:
            return self.arrival.input_tokens, self.arrival.output_tokens
        return (self.arrival.input_tokens, self.generated_tokens) if self.generated_tokens else (0, 0)

    @property
    def ttft_s(self) -> float:
        return self.first_token_s - self.release_s

    @property
    def latency_s(self) -> float:
        return self.finish_s - self.release_s
