"""Why our scheduler ended a request, as the server's answer shows it. Pure.

The scheduler ends a request with vLLM's reason `abort` and a stop reason of its own (scheduler.py). The server passes
both on with the last chunk of a choice. A tenant's own stop string can be any text, but its reason is `stop`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_worker.engines.interface import EngineError, Evicted, PromptTooLong, RefusedByPolicy
from gpu_worker.engines.openai.errors import failed

ENDED_PREFIX = "headgate:"
"""The beginning of the stop reason of a request that the scheduler ended; the reason follows."""


class Expired(EngineError):
    """The request's deadline has passed."""

    def __init__(self) -> None:
        super().__init__("expired", "the request's deadline has passed")


def check_end(choice: Mapping[str, Any]) -> None:
    """Raise the error of a choice that our scheduler ended."""
    stop_reason = choice.get("stop_reason")
    if choice.get("finish_reason") != "abort" or not isinstance(stop_reason, str):
        return
    if not stop_reason.startswith(ENDED_PREFIX):
        return
    reason = stop_reason.removeprefix(ENDED_PREFIX)
    if reason.startswith("preempted"):
        raise Evicted(exhausted=reason == "preempted_too_often")
    if reason == "refused":
        raise RefusedByPolicy
    if reason == "too_large":
        raise PromptTooLong("the prompt and max_tokens need more of the cache than this tier can have")
    if reason == "expired":
        raise Expired
    raise failed(f"its scheduler ended it: {reason}")
