"""What a queue policy knows of one request: its description, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from dispatcher.policies.share_bounds import clamp_weight
from dispatcher.policies.tiers import Tier


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """A request as a queue policy sees it; lengths are in tokens.

    `weight`: the share of its tenant, a positive number. `system_tokens`: the part of `input_tokens` that is the system
    prompt. `output_tokens`: the true output length, which only a simulator knows beforehand; an engine leaves it None
    and sets `output_tokens_max`, the longest output allowed, or the expected one if the client set no limit.

    `interaction`: its tenant's name for the interaction that the request belongs to, "" for none. `app`, `stage`: the
    application and the stage of the interaction. `deadline_s`: when the answer becomes useless, on the clock of the
    policy.

    A weight outside the bounds of the gate (dispatcher/policies/share_bounds.py) is clamped: otherwise one request of a
    tiny weight would lift the counters of all later tenants beyond the precision of a float.

    Raises ValueError for a weight or a length that is impossible.
    """

    request_id: str
    tenant: str
    input_tokens: int
    weight: float = 1.0
    output_tokens: int | None = None
    app: str = ""
    stage: int = 0
    interaction: str = ""
    system_tokens: int = 0
    output_tokens_max: int | None = None
    tier: Tier = Tier.STANDARD
    deadline_s: float = inf

    def __post_init__(self) -> None:
        if not 0 < self.weight < inf:
            raise ValueError(f"weight must be a positive number, not {self.weight!r}")
        object.__setattr__(self, "weight", clamp_weight(self.weight))
        if self.input_tokens < 0:
            raise ValueError(f"input_tokens must not be negative, not {self.input_tokens!r}")
        if not 0 <= self.system_tokens <= self.input_tokens:
            raise ValueError(f"system_tokens must be a part of input_tokens, not {self.system_tokens!r}")


@dataclass(slots=True, eq=False)
class RequestRecord:
    """The state of a request in a queue policy, from `enqueue` to its end.

    `place`: its number in the order of arrival; a preempted request returns to this place. `prompt_charged`: whether
    the prompt has been charged. `resumed`: whether the request ran before its current admission.

    `preemptions`: how often the request was preempted. `output_tokens`: the largest output length reported so far.
    While the request runs, it is the length at decode step `since_step` of the policy, and each later step adds one
    token.

    `predicted`: the predicted output length, charged in advance (vtc_predicted.py). `expected`: the usual cost of such
    a request, in weighted tokens (wsc.py). `cached_tokens`: prompt tokens found in the prefix cache and charged at the
    reduced price.
    """

    request: QueueRequest
    place: int
    prompt_charged: bool = False
    resumed: bool = False
    preemptions: int = 0
    output_tokens: int = 0
    since_step: int = 0
    predicted: int | None = None
    expected: float = 1.0
    cached_tokens: int = 0
