"""Remembers the calls with failed attempts on this worker, so that none is repeated in vain. Pure.

The gate offers a returned call to another worker if it can. If the call comes back, there is no other, and a repetition
at once would fail in the same way: the request is at fault, or the engine asks for time.
"""

from __future__ import annotations

from typing import NamedTuple

CALLS_MAX = 1024
"""Beyond this many calls the oldest is forgotten: it is repeated if it comes back."""


class FailedCall(NamedTuple):
    """`is_overload`: the engine refused it for now. `status`, `code`, `message`: what its caller gets. `again_s`: when
    the engine may be asked again, by the monotonic clock. `is_stated`: the engine itself said so (Retry-After).
    `after_round`: a later round of probes explains the failure (engine_health.py)."""

    is_overload: bool
    status: int
    code: str
    message: str
    again_s: float = 0.0
    is_stated: bool = False
    after_round: int = 0


class FailedCalls:
    def __init__(self, calls_max: int = CALLS_MAX) -> None:
        self._calls: dict[str, FailedCall] = {}
        self._calls_max = calls_max

    def note(self, call_id: str, failed: FailedCall) -> None:
        self._calls.pop(call_id, None)
        self._calls[call_id] = failed
        if len(self._calls) > self._calls_max:
            del self._calls[next(iter(self._calls))]

    def find(self, call_id: str) -> FailedCall | None:
        return self._calls.get(call_id)

    def forget(self, call_id: str) -> None:
        self._calls.pop(call_id, None)
