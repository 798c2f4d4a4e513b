"""The states of a call in a shard, and the facts that lead from one to another.

README.md beside this file shows the table and its picture; both are written from it. The shard itself does not read
the table. A test drives decisions at random, watches every fact being folded, and finds exactly these transitions
(tests/unit/shard/test_transitions.py).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from dispatcher.model.facts import (
    Accepted,
    Cancelling,
    Dispatched,
    Dropped,
    Ended,
    Fact,
    Held,
    ProcessLost,
    ProcessSet,
    Returned,
)
from dispatcher.policies.orders.queues import Call


class CallState(StrEnum):
    NEW = "new"
    """The state does not hold the call: no entry has accepted it."""
    QUEUED = "queued"
    """The call waits in its tenant's queue, and may get a slot."""
    SUSPENDED = "suspended"
    """The call waits in no queue, because the process that holds it is silent. It keeps its place."""
    RUNNING = "running"
    """The call has a slot: its attempt is offered, runs, or has ended without a report so far."""
    CANCELLING = "cancelling"
    """The call has a slot, and its caller has left. It is not tried again."""
    ENDED = "ended"
    """The state does not hold the call any more. It remembers the end for a while (remembered.py)."""


class Transition(NamedTuple):
    before: CallState
    fact: type[Fact]
    after: CallState
    when: str


_S = CallState
TRANSITIONS = (
    Transition(_S.NEW, Accepted, _S.QUEUED, "the call joins its tenant's queue"),
    Transition(_S.NEW, Accepted, _S.SUSPENDED, "no process holds the call, and such calls are suspended"),
    Transition(_S.QUEUED, Dispatched, _S.RUNNING, "the call is due first and gets a free slot"),
    Transition(_S.RUNNING, Returned, _S.QUEUED, "the attempt was not begun, or failed and may be tried again"),
    Transition(_S.RUNNING, Returned, _S.SUSPENDED, "the same, while the call's process is silent"),
    Transition(_S.RUNNING, Cancelling, _S.CANCELLING, "the caller left, or the deadline passed"),
    Transition(_S.RUNNING, ProcessLost, _S.CANCELLING, "the call's process is gone, and the call is not durable"),
    Transition(_S.RUNNING, Ended, _S.ENDED, "the worker reports the end, or the call may not be tried again"),
    Transition(_S.CANCELLING, Ended, _S.ENDED, "the attempt ended or was returned"),
    Transition(_S.QUEUED, ProcessSet, _S.SUSPENDED, "the call's process became silent"),
    Transition(_S.SUSPENDED, ProcessSet, _S.QUEUED, "the call's process is present again"),
    Transition(_S.QUEUED, Held, _S.SUSPENDED, "the process let the durable call go, and such calls are suspended"),
    Transition(_S.SUSPENDED, Held, _S.QUEUED, "another process holds the durable call now"),
    Transition(_S.SUSPENDED, ProcessLost, _S.QUEUED, "the call's process is gone; a durable call waits on without one"),
    Transition(_S.SUSPENDED, ProcessLost, _S.ENDED, "the call's process is gone, and the call is not durable"),
    Transition(_S.QUEUED, Dropped, _S.ENDED, "cancelled, expired, or ended by the stored answer of an earlier attempt"),
    Transition(_S.SUSPENDED, Dropped, _S.ENDED, "the same"),
)
"""Every change of a call's state. Any other fact leaves the state of every call as it is."""


def find_state(call: Call) -> CallState:
    """Return the state of a call that a shard holds."""
    if call.worker:
        return CallState.CANCELLING if call.cancelling else CallState.RUNNING
    return CallState.QUEUED if call.queued else CallState.SUSPENDED
