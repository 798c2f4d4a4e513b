"""What queue policies know of one request: what it says of itself, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from dispatcher.policies.tiers import Tier


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """One request as a policy sees it. `weight`: its tenant's share, a positive number.

    `output_tokens`: its true output length where somebody knows it beforehand (a simulator); engines leave None, and
    say the most that it may be, `output_tokens_max`.
    `system_tokens` are part of `input_tokens`. `interaction`: which of its tenant's interactions it belongs to, ""
    for none; `app` and `stage`: what is asked there, and at which of its stages. `deadline_s`: by the clock that the
    policy is told of, when its answer is worth nothing any more.
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
        if self.input_tokens < 0:
            raise ValueError(f"input_tokens must not be negative, not {self.input_tokens!r}")
        if not 0 <= self.system_tokens <= self.input_tokens:
            raise ValueError(f"system_tokens must be a part of input_tokens, not {self.system_tokens!r}")


@dataclass(slots=True, eq=False)
class RequestRecord:
    """A request between `enqueue` and its end.

    `place`: its number in the order of arrival, kept when it returns. `resumed`: it ran before this admission.
    `output_tokens`: the most that was reported, while it runs as of decode step `since_step` of the policy: each step
    after that is a token more. `predicted`: its output length as somebody guessed it, charged beforehand. `expected`:
    what such a request usually costs (WSC). `cached_tokens`: of its prompt, those that came out of a cache and were
    charged as such.
    """

    request: QueueRequest
    place: int
    prompt_charged: bool = False
    resumed: bool = False
    output_tokens: int = 0
    since_step: int = 0
    predicted: int | None = None
    expected: float = 1.0
    cached_tokens: int = 0
