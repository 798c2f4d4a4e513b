"""What the gate asks of a worker, and what comes back, event by event. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dispatcher.policies.tiers import Tier


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """One execution as the worker is asked for it. The tenant's weight and tier are set here and nowhere else.

    `app`, `stage`, `interaction` are the client's word: they order what is the tenant's own. `cache_salt` is filled in
    where the order is signed.
    """

    tenant: str
    invocation: str
    attempt: int
    slot: int
    model: str
    weight: float
    tier: Tier
    deadline_at: float
    prompt: str | None
    messages: tuple[Mapping[str, str], ...] | None
    max_tokens: int
    temperature: float
    seed: int | None
    stop: tuple[str, ...]
    app: str = ""
    stage: int = 0
    interaction: str = ""
    cache_salt: str = ""

    @property
    def execution(self) -> str:
        return f"{self.tenant}/{self.invocation}#{self.attempt}"


@dataclass(frozen=True, slots=True)
class WorkStarted:
    input_tokens: int


@dataclass(frozen=True, slots=True)
class WorkToken:
    text: str
    output_tokens: int


@dataclass(frozen=True, slots=True)
class WorkFinished:
    reason: str
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class WorkRefused:
    """The worker will not or cannot serve this: `status` as HTTP has it; a tenant's error where it is below 500.

    `retry_after_s`: when it may be asked again, where the worker knows.
    """

    status: int
    code: str
    message: str
    retry_after_s: float | None = None


WorkEvent = WorkStarted | WorkToken | WorkFinished | WorkRefused
