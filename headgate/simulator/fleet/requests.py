"""A request of a fleet: its model, its class, when its first token is due, and its attempts.

A swap can return a request that has tokens already. Its next attempt computes these tokens with the prompt, and then
generates the rest. The caller has had its first token.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from headgate.simulator.requests import NEVER, SimRequest

RETURNS_MAX = 100
"""A request that was returned so often is refused (`returned`): two planners' rules could swap for ever."""


@dataclass(slots=True, eq=False)
class FleetRequest:
    """`request`: of the workload, with the whole outcome. `attempt`: what an engine serves now.

    `number`: in the order of arrivals. `due_s`: seconds of the run. `generated`: output tokens of earlier attempts.
    """

    request: SimRequest
    number: int
    model: str
    slo_class: str
    due_s: float
    attempt: SimRequest = field(init=False)
    generated: int = 0
    returns: int = 0

    def __post_init__(self) -> None:
        self.attempt = self.request

    @property
    def name(self) -> str:
        return self.request.request_id

    @property
    def is_in_time(self) -> bool:
        return 0.0 <= self.request.first_token_s <= self.due_s

    def give_back(self, generated: int) -> None:
        """End the attempt, which generated so many tokens, without an end of the request."""
        self._keep_first_token(had_token=generated > 0)
        self.returns += 1
        self.generated += generated
        whole = self.request.arrival
        rest = replace(
            whole,
            input_tokens=whole.input_tokens + self.generated,
            output_tokens=max(1, whole.output_tokens - self.generated),
        )
        self.attempt = SimRequest(self.name, rest, self.request.release_s, self.request.weight)
        if self.returns >= RETURNS_MAX:
            self.request.rejected = "returned"

    def end(self) -> None:
        """Note the outcome of the last attempt as that of the request."""
        self._keep_first_token(had_token=self.attempt.rejected is None)
        self.request.finish_s, self.request.rejected = self.attempt.finish_s, self.attempt.rejected

    def _keep_first_token(self, *, had_token: bool) -> None:
        if had_token and (self.request.first_token_s == NEVER or self.attempt is self.request):
            self.request.first_token_s = self.attempt.first_token_s
