"""Passes to the task of a call what it must react to: the gate's news, and signals of time."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from dispatcher.model.commands import Offer, Over
from dispatcher.operations.calls import Call
from dispatcher.operations.context import Context
from dispatcher.operations.directory import LOOK_S

LATE_S = 2.0
"""A worker ends an execution at its deadline. If it has not done so within this time after it, the stream is closed."""
WAITING_END_S = 3 * LOOK_S
"""A waiting request ends within this time after its tenant was deleted, and the time of one read of the store: a look
that another request's read makes unnecessary, one that begins a read, and one that finds its result."""


class Signal(Enum):
    LEFT = "the last caller left"
    LATE = "the deadline has passed"
    LOOK = "it is time to see whether the tenant still exists"


async def watch(context: Context, call: Call, put: Callable[[Offer | Over | Signal], None]) -> None:
    """Put the news of the call, LATE at its deadline and each LATE_S after it, and LOOK every LOOK_S.

    Return when the call is over.
    """
    late_at, look_at = call.terms.deadline_at, context.clock.now() + LOOK_S
    link = context.link(call.pool)
    while True:
        news = await link.news(call.id, max(0.0, min(late_at, look_at) - context.clock.now()))
        if news is not None:
            put(news)
            if isinstance(news, Over):
                return
        elif context.clock.now() >= late_at:
            put(Signal.LATE)
            late_at += LATE_S
        elif context.clock.now() >= look_at:
            put(Signal.LOOK)
            look_at += LOOK_S
