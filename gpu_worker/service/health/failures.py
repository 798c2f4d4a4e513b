"""What an engine's error says about the engine, and what a probe of it finds.

| kind | errors | it counts against |
| --- | --- | --- |
| REQUEST | the request is invalid or too long, a policy refuses it, a more urgent one evicts it | nothing |
| OVERLOAD | HTTP 429, 503 or 529 | the worker's slots, if a probe is refused too |
| FAILURE | any other: HTTP 500, an answer that is broken off or malformed, a bug | the engine, if a probe fails too |
| REPLACED | the engine is being replaced (engines/supervised.py) | nothing more |
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from enum import Enum

from dispatcher.model.answers import ENGINE_OVERLOADED
from dispatcher.ports import Clock
from gpu_worker.engines.interface import Engine, EngineError, WorkOrder, probe_order

OVERLOADED = ENGINE_OVERLOADED
_OVERLOAD_STATUSES = frozenset({429, 503, 529})
"""529 is what some providers send for an overloaded site."""
_TOO_MANY_REQUESTS = 429
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
    if error.code == OVERLOADED or error.status in _OVERLOAD_STATUSES:
        return FailureKind.OVERLOAD
    return FailureKind.FAILURE


def overload_status(error: EngineError) -> int:
    """Return the caller's HTTP status for an overload: 429 if the engine said so, otherwise 503."""
    return _TOO_MANY_REQUESTS if error.status == _TOO_MANY_REQUESTS else 503


PROBE_TENANT = "headgate-canary"
_PROBE_S = 5.0
"""The longest wait for the token. A busy engine may take longer, so an engine that is late is not sick: whether it
makes progress is watched elsewhere (engines/supervised.py)."""


class ProbeVerdict(Enum):
    """What a probe found. A probe that the engine refuses as invalid shows that the engine works."""

    WELL = "well"
    OVERLOADED = "overloaded"
    SICK = "sick"
    UNKNOWN = "unknown"


_OF_KIND = {
    FailureKind.REQUEST: ProbeVerdict.WELL,
    FailureKind.OVERLOAD: ProbeVerdict.OVERLOADED,
    FailureKind.FAILURE: ProbeVerdict.SICK,
    FailureKind.REPLACED: ProbeVerdict.UNKNOWN,
}


async def probe(engine: Engine, clock: Clock, number: int) -> ProbeVerdict:
    """Let the engine generate one token, and return what became of it. No other probe of the engine has this number."""
    asking = asyncio.ensure_future(_ask(engine, probe_order(f"probe-{number}", PROBE_TENANT, engine.facts)))
    limit = asyncio.ensure_future(clock.sleep(_PROBE_S))
    try:
        await asyncio.wait({asking, limit}, return_when=asyncio.FIRST_COMPLETED)
        return asking.result() if asking.done() else ProbeVerdict.UNKNOWN
    finally:
        limit.cancel()
        asking.cancel()
        await asyncio.gather(asking, limit, return_exceptions=True)


async def _ask(engine: Engine, request: WorkOrder) -> ProbeVerdict:
    try:
        async with aclosing(engine.generate(request)) as events:
            async for _ in events:
                pass
    except EngineError as error:
        return _OF_KIND[kind_of(error)]
    except Exception:  # of any kind: an engine that works does not raise it
        return ProbeVerdict.SICK
    return ProbeVerdict.WELL
