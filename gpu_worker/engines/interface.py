"""What a worker asks of an engine, whatever runs behind it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from math import inf
from typing import Literal, Protocol

from dispatcher.model.worker_protocol import Finished as Finished
from dispatcher.model.worker_protocol import Started as Started
from dispatcher.model.worker_protocol import Token as Token
from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.accounting.tenant_service import TenantService
from gpu_worker.policies.request import QueueRequest
from gpu_worker.policies.scheduling_stats import SchedulingGauges, SchedulingStats

FinishReason = Literal["stop", "length", "aborted"]


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to generate. `prompt` is text; chat messages were rendered by `Engine.render_chat`.

    Tenant, weight, tier, application and stage are the dispatcher's word, never the client's. `timeout_s`: from now,
    after which nobody wants the answer. `cache_salt`: requests with different ones share no prefix in a cache; ""
    shares with nobody who has one.
    """

    request_id: str
    tenant: str
    prompt: str
    max_tokens: int
    weight: float = 1.0
    temperature: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = field(default=())
    tier: Tier = Tier.STANDARD
    app: str = ""
    stage: int = 0
    interaction: str = ""
    timeout_s: float = inf
    cache_salt: str = ""

    def queued(self, input_tokens: int, now_s: float) -> QueueRequest:
        """As a queue policy sees it. `now_s`: of the clock that the policy is told of."""
        return QueueRequest(
            self.request_id,
            self.tenant,
            input_tokens,
            self.weight,
            app=self.app,
            stage=self.stage,
            interaction=self.interaction,
            output_tokens_max=self.max_tokens,
            tier=self.tier,
            deadline_s=now_s + self.timeout_s,
        )


EngineEvent = Started | Token | Finished


class EngineError(Exception):
    """The engine cannot serve this request. `code` is stable, `message` is for the tenant."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class PromptTooLong(EngineError):
    """Prompt and max_tokens do not fit the model's context or the engine's cache."""

    def __init__(self, message: str) -> None:
        super().__init__("context_length_exceeded", message)


class Dropped(EngineError):
    """It ran, and was ended to make room: `preempted`, or for having been preempted as often as may be."""

    def __init__(self, *, exhausted: bool = False) -> None:
        code, why = ("preempted_too_often", "again and again") if exhausted else ("preempted", "")
        said = f"this request was evicted {why}".strip()
        super().__init__(code, f"{said}, to make room for more urgent work; send it again later")


class RefusedByPolicy(EngineError):
    """The queue policy lets in no more of this tenant for now (RPM)."""

    def __init__(self) -> None:
        super().__init__("rate_limit_exceeded", "too many requests of this tenant in the last minute")


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the fleet must know of a model: its name for tenants, its context and how text becomes tokens."""

    model: str
    context_tokens: int
    bytes_per_token: float


@dataclass(frozen=True, slots=True)
class EngineStats:
    waiting: int
    running: int
    kv_use: float
    """Share of the KV cache in use, 0 to 1."""
    tenants: dict[str, TenantService]
    figures: SchedulingStats = field(default_factory=SchedulingStats)
    now: SchedulingGauges = field(default_factory=SchedulingGauges)


class Engine(Protocol):
    """Generates for many requests at once; its queue policy decides who enters the batch."""

    @property
    def facts(self) -> EngineFacts: ...

    def render_chat(self, messages: list[dict[str, str]]) -> str: ...

    def generate(self, request: EngineRequest) -> AsyncGenerator[EngineEvent, None]:
        """Started, then Tokens, then Finished. Closing the iterator early aborts the work at the next step.

        Raises PromptTooLong before Started, RefusedByPolicy before a token, Dropped after some where it is ended to
        make room for others, EngineError if the engine fails.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request from outside: its iterator yields Finished("aborted", …) with what was generated."""
        ...

    def stats(self) -> EngineStats: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...
