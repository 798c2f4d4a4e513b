"""The causes of a worker's failed attempts: a worker rests only if failures have several causes. Pure.

The requests of one tenant may all fail by their own fault, so all failures of one tenant are one cause. The next word
is the worker's: it probes its engine after a failure, and reports itself as draining while the engine is sick
(gpu_worker/service/health). The gate's rule is for what a worker cannot see, and for workers that do not probe.

| reason of the return | cause |
| --- | --- |
| failed | the tenant of the call |
| unreachable, lost, and any other | the call: no request causes this, so each counts |
| refused | none: a worker that refuses is alive, and knows why |
"""

from __future__ import annotations

from dispatcher.policies.orders.queues import Call
from dispatcher.shard.state.records import RECENT

BY_THE_REQUEST = frozenset({"failed"})
NO_FAULT = frozenset({"refused"})


def cause_of(call: Call, reason: str) -> str:
    """Return the cause of an attempt that was returned for `reason`; empty if it shows no fault of the worker."""
    if reason in NO_FAULT:
        return ""
    return f"tenant {call.tenant.name}" if reason in BY_THE_REQUEST else f"call {call.id}#{call.attempt}"


def next_causes(causes: tuple[str, ...], cause: str) -> tuple[str, ...]:
    """Return the causes with that of one more attempt. Attempts before the oldest cause are dropped."""
    if not cause and not causes:
        return ()
    kept = (cause, *causes)[:RECENT]
    while kept and not kept[-1]:
        kept = kept[:-1]
    return kept
