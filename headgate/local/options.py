"""What a local stack is made of: a frozen, validated choice."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.clocks import Share

SMALL_MODEL = "random:8x384"
"""Layers x width. On a CPU slow enough (some 200 tokens a second) that tenants compete for the engine: a smaller
one is faster than a stand-in for DynamoDB can feed it."""
START_TIMEOUT_S = 90.0
"""A worker imports torch and builds its model in this time on a slow machine."""
DEMO_TENANTS = ("quiet", "flood")


class StackOptions(BaseModel):
    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    engine: Literal["transformers", "modelled", "vllm"] = "transformers"
    model: str | None = None
    """Folder of a local Hugging Face model; None for a small random one that the project builds (SMALL_MODEL)."""
    workers: int = Field(default=1, ge=1, le=8)
    slots: int = Field(default=8, ge=1, le=64)
    """Slots a worker: more than fit its batch, so that the engine's own queue has something to order."""
    order: Literal["bwfq", "fcfs"] = "bwfq"
    """The gate's order."""
    policy: Literal["vtc", "fcfs", "tiered:vtc"] = "tiered:vtc"
    """The engine's queue policy; with tiers, those of its tenants decide before their counters."""
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    """The OpenAI face; 0 takes a free port."""
    aws_port: int = Field(default=0, ge=0, le=65535)
    """The AWS endpoint; 0 takes a free port."""
    tenants: dict[str, Share] = Field(default_factory=lambda: {name: Share() for name in DEMO_TENANTS})
    queue_items_max: int = Field(default=1000, ge=0)
    store: Literal["moto", "dynamodb-local"] = "moto"
    """Who plays DynamoDB: moto, or Amazon's DynamoDB Local where Java and its npm package are present."""
    start_timeout_s: float = Field(default=START_TIMEOUT_S, gt=0)
    """Seconds that each process may take to start."""
    home: Path
    """Where logs and the tiny model are kept."""


def stack_options(**values: object) -> StackOptions:
    """Options as a person gives them. Raises ConfigurationError, naming the option."""
    try:
        return StackOptions.model_validate(values)
    except ValidationError as error:
        finding = error.errors(include_url=False)[0]
        option = "--" + ".".join(str(part).removesuffix("_s") for part in finding["loc"]).replace("_", "-")
        raise ConfigurationError(f"{option}: {finding['msg']}") from None


class Addresses(BaseModel):
    """Where a stack is reached. The fields of `headgate local --json`."""

    model_config = ConfigDict(frozen=True)

    openai_base_url: str
    aws_endpoint_url: str
    api_keys: dict[str, str]
