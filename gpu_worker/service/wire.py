"""The protocol between gate and worker: a work order in, events out, one JSON object a line (NDJSON)."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import EngineRequest

BODY_BYTES_MAX = 2_000_000
"""Twice what the gate reads of a tenant: an order is such a body and the gate's own fields."""
TEXT_CHARS_MAX = 1_000_000
MESSAGES_MAX = 256
STOPS_MAX = 16
STOP_CHARS_MAX = 1000
SEED_MAX = 2**63 - 1

Name = Annotated[str, Field(min_length=1, max_length=128)]
Label = Annotated[str, Field(max_length=64)]
Text = Annotated[str, Field(max_length=TEXT_CHARS_MAX)]


class OrderRefused(Exception):
    """The body is no work order. The message names the field, never its value."""


class Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Annotated[str, Field(max_length=32)]
    content: Text


class OrderBody(BaseModel):
    """A `WorkOrder` as it travels; dispatcher/model/worker_protocol.py says what the fields mean."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    tenant: Name
    invocation: Name
    attempt: Annotated[int, Field(ge=1, le=100)]
    slot: Annotated[int, Field(ge=0, le=10_000)]
    model: Annotated[str, Field(min_length=1, max_length=200)]
    weight: Annotated[float, Field(gt=0, lt=1e9)]
    tier: Tier
    deadline_at: float
    prompt: Text | None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MESSAGES_MAX)] | None
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)]
    temperature: Annotated[float, Field(ge=0, le=2)]
    seed: Annotated[int, Field(ge=-SEED_MAX, le=SEED_MAX)] | None
    stop: Annotated[list[Annotated[str, Field(min_length=1, max_length=STOP_CHARS_MAX)]], Field(max_length=STOPS_MAX)]
    app: Label
    stage: Annotated[int, Field(ge=0, le=10_000)]
    interaction: Label
    cache_salt: Label

    @model_validator(mode="after")
    def _one_form(self) -> OrderBody:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("either prompt or messages")
        return self

    @property
    def execution(self) -> str:
        return f"{self.tenant}/{self.invocation}#{self.attempt}"

    def engine_request(self, prompt: str, now: float) -> EngineRequest:
        """`now`: by the clock of `deadline_at`. Applications are the tenant's own: what is learned of one must not move
        another tenant's requests, whatever either calls it."""
        return EngineRequest(
            request_id=self.execution,
            tenant=self.tenant,
            prompt=prompt,
            max_tokens=self.max_tokens,
            weight=self.weight,
            temperature=self.temperature,
            seed=self.seed,
            stop=tuple(self.stop),
            tier=self.tier,
            app=f"{self.tenant}/{self.app}" if self.app else "",
            stage=self.stage,
            interaction=self.interaction,
            timeout_s=max(0.0, self.deadline_at - now),
            cache_salt=self.cache_salt,
        )


def parse_order(body: bytes) -> OrderBody:
    """Raises OrderRefused."""
    try:
        return OrderBody.model_validate_json(body)
    except ValidationError as error:
        finding = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise OrderRefused(f"{'.'.join(map(str, finding['loc']))}: {finding['type']}") from None


Event = Literal["started", "token", "finished", "refused", "alive"]


def line(event: Event, **fields: Any) -> bytes:
    """One event on its way. In ASCII: text may hold what some reader takes for the end of a line."""
    return json.dumps({"event": event, **fields}, separators=(",", ":")).encode() + b"\n"
