"""One request of a simulated run, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.interface import QueueRequest
from headgate.workloads.arrivals import Arrival

_NEVER = -1.0
_STANDARD = Tier.STANDARD
"""To read a member of an enum takes twice as long as to read a name."""
_RETURNS_MAX = 100
"""A request that a fleet's swaps returned so often is refused (`returned`): two planners' rules could swap for ever."""


@dataclass(slots=True, eq=False, init=False)
class SimRequest(QueueRequest):
    """Times in seconds of the run. `release_s`: when the request was sent. A later stage of an interaction is sent
    after the stage before it was answered, which may be later than its arrival in the workload.

    It is the QueueRequest that the policy gets: a run of a million keeps few objects of each, and needs no table from
    the one to the other. Equal are only the same ones.

    `number`, `model`, `slo_class` and `later_attempt` to `returns`: only in a fleet. A swap can return a request that
    has tokens already. Its next attempt computes these tokens with the prompt, and then generates the rest. The caller
    has had its first token.

    `rejected`: why the request was not served: `rate` (refused by the policy), `too_large` (for the pool), `unsent` (an
    earlier stage of its interaction was refused), `dropped` or `exhausted` (ended early by the paged engine), or the
    reason of a gate, shedding or throttling before the engine (gates/).

    Raises ValueError for a weight or a length that is impossible.
    """

    arrival: Arrival
    release_s: float
    admitted_s: float
    first_token_s: float
    finish_s: float
    rejected: str | None
    generated_tokens: int
    """Output tokens when the engine ended it early."""
    cached_tokens: int
    """Input tokens that the engine's prefix cache had."""
    adapter_loads: int
    """How often its adapter was loaded for it."""
    number: int
    """It counts the arrivals."""
    model: str
    slo_class: str
    due_s: float
    """When the first token is due: by its workload's `slo_ttft_ms`, or by its class in a fleet."""
    later_attempt: SimRequest | None
    """The attempt after the last return; None: the first attempt is the request itself."""
    earlier_tokens: int
    """Output tokens of the attempts that were returned."""
    returns: int

    def __init__(
        self,
        request_id: str,
        arrival: Arrival,
        release_s: float,
        weight: float = 1.0,
        admitted_s: float = _NEVER,
        first_token_s: float = _NEVER,
        finish_s: float = _NEVER,
        rejected: str | None = None,
    ) -> None:
        self.request_id = request_id
        self.tenant = arrival.tenant
        self.input_tokens = arrival.input_tokens
        self.weight = weight
        self.output_tokens = arrival.output_tokens
        self.app = arrival.app or ""
        self.stage = arrival.stage or 0
        self.interaction = arrival.interaction or ""
        self.system_tokens = arrival.system_tokens
        self.output_tokens_max = None
        self.tier = _STANDARD if arrival.tier is None else Tier(arrival.tier)
        self.deadline_s = inf
        self.arrival = arrival
        self.release_s = release_s
        self.admitted_s = admitted_s
        self.first_token_s = first_token_s
        self.finish_s = finish_s
        self.rejected = rejected
        self.generated_tokens = self.cached_tokens = self.adapter_loads = 0
        self.number = 0
        self.model = self.slo_class = ""
        self.due_s = inf
        self.later_attempt = None
        self.earlier_tokens = self.returns = 0
        if weight != 1.0 or self.system_tokens or self.input_tokens < 0:
            self.__post_init__()

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def attempt(self) -> SimRequest:
        """What an engine serves now."""
        return self if self.later_attempt is None else self.later_attempt

    @property
    def is_in_time(self) -> bool:
        return 0.0 <= self.first_token_s <= self.due_s

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

    def give_back(self, generated: int) -> None:
        """End the attempt, which generated so many tokens, without an end of the request."""
        self._keep_first_token(had_token=generated > 0)
        if self.later_attempt is not None:
            self.adapter_loads += self.later_attempt.adapter_loads
        self.returns += 1
        self.earlier_tokens += generated
        rest = replace(
            self.arrival,
            input_tokens=self.arrival.input_tokens + self.earlier_tokens,
            output_tokens=max(1, self.arrival.output_tokens - self.earlier_tokens),
        )
        self.later_attempt = SimRequest(self.request_id, rest, self.release_s, self.weight)
        if self.returns >= _RETURNS_MAX:
            self.rejected = "returned"

    def end(self) -> None:
        """Note the outcome of the last attempt as that of the request."""
        last = self.attempt
        if last is not self:
            self.adapter_loads += last.adapter_loads
        self._keep_first_token(had_token=last.rejected is None)
        self.finish_s, self.rejected = last.finish_s, last.rejected

    def _keep_first_token(self, *, had_token: bool) -> None:
        if had_token and self.first_token_s == _NEVER:
            self.first_token_s = self.attempt.first_token_s
