"""Options of the local stack, validated."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.clocks import Share

SMALL_MODEL = "random:8x384"
"""Layers x width. On a CPU it makes some 200 tokens a second, so tenants compete for the engine. A smaller model
would be faster than the local DynamoDB can feed it."""
START_TIMEOUT_S = 90.0
"""In this time, a worker on a slow machine imports torch and builds its model."""
DEMO_TENANTS = ("quiet", "flood")


class StackOptions(BaseModel):
    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    engine: Literal["transformers", "modelled", "vllm"] = "transformers"
    model: str | None = None
    """Folder of a Hugging Face model; None: a small model with random weights, built on this machine (SMALL_MODEL)."""
    workers: int = Field(default=1, ge=1, le=8)
    slots: int = Field(default=8, ge=1, le=64)
    """Slots of a worker. More than its batch, so that the engine's queue has requests to order."""
    order: Literal["bwfq", "fcfs"] = "bwfq"
    """The gate's order."""
    policy: Literal["vtc", "fcfs", "tiered:vtc"] = "tiered:vtc"
    """The policy of the engine's queue. With tiered:vtc a request's tier comes before its tenant's counter."""
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    """Port of the HTTP front; 0 takes a free port."""
    aws_port: int = Field(default=0, ge=0, le=65535)
    """Port of the AWS endpoint; 0 takes a free port."""
    tenants: dict[str, Share] = Field(default_factory=lambda: {name: Share() for name in DEMO_TENANTS})
    queue_items_max: int = Field(default=1000, ge=0)
    store: Literal["moto", "dynamodb-local"] = "moto"
    """The local DynamoDB: moto, or Amazon's DynamoDB Local, which needs Java and its npm package."""
    start_timeout_s: float = Field(default=START_TIMEOUT_S, gt=0)
    """Seconds that each process may take to start."""
    home: Path
    """Folder for logs and the built model."""


def stack_options(**values: object) -> StackOptions:
    """Validate options from the command line. Raises ConfigurationError, which names the option."""
    try:
        return StackOptions.model_validate(values)
    except ValidationError as error:
        finding = error.errors(include_url=False)[0]
        option = "--" + ".".join(str(part).removesuffix("_s") for part in finding["loc"]).replace("_", "-")
        raise ConfigurationError(f"{option}: {finding['msg']}") from None


class Addresses(BaseModel):
    """Addresses and keys of a running stack: the fields of `headgate local --json`."""

    model_config = ConfigDict(frozen=True)

    openai_base_url: str
    aws_endpoint_url: str
    api_keys: dict[str, str]
