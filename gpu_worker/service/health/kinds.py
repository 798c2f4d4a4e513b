"""What an engine's error says about the engine. Pure.

| kind | errors | it counts against |
| --- | --- | --- |
| REQUEST | the request is invalid or too long, a policy refuses it, a more urgent one evicts it | nothing |
| OVERLOAD | HTTP 429, 503 or 529 | the worker's slots, if a probe is refused too |
| FAILURE | any other: HTTP 500, an answer that is broken off or malformed, a bug | the engine, if a probe fails too |
| REPLACED | the engine is being replaced (engines/supervised.py) | nothing more |
"""

from __future__ import annotations

from enum import Enum

from dispatcher.model.answers import ENGINE_OVERLOADED
from gpu_worker.engines.interface import EngineError

OVERLOADED = ENGINE_OVERLOADED
OVERLOAD_STATUSES = frozenset({429, 503, 529})
"""529 is what some providers send for an overloaded site."""
TOO_MANY_REQUESTS = 429
REPLACED = frozenset({"engine_restarted", "engine_stopped"})
REFUSED_AS = {
    "context_length_exceeded": 400,
    "invalid_messages": 400,
    "invalid_request": 400,
    "rate_limit_exceeded": 429,
    "preempted": 503,
    "preempted_too_often": 503,
}
"""The HTTP statuses of those engine errors that the request itself or more urgent requests caused."""


class FailureKind(Enum):
    REQUEST = "request"
    OVERLOAD = "overload"
    FAILURE = "failure"
    REPLACED = "replaced"


def kind_of(error: EngineError) -> FailureKind:
    """Return what the error says about the engine."""
    if error.code in REFUSED_AS:
        return FailureKind.REQUEST
    if error.code in REPLACED:
        return FailureKind.REPLACED
    if error.code == OVERLOADED or error.status in OVERLOAD_STATUSES:
        return FailureKind.OVERLOAD
    return FailureKind.FAILURE


def overload_status(error: EngineError) -> int:
    """Return the caller's HTTP status for an overload: 429 if the engine said so, otherwise 503."""
    return TOO_MANY_REQUESTS if error.status == TOO_MANY_REQUESTS else 503
