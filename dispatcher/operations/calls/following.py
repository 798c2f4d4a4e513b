"""The caller's side of one call: it sends the call to the gate, begins its offers, and ends with its answer.

A call has no task of its own. It reacts to each item where the item arrives: to an outcome, an offer, the end of an
attempt, a time. So it begins an offer at once, even if the caller reads slowly: an offer that is not begun in time
suspends all calls of this process. A reaction that needs the gate or the store goes on in a task, and the items that
arrive meanwhile wait for its end.

It follows these rules (docs/gate.md, rules 3 to 6 and 15):
- It begins an offer only if the offer's attempt is above all attempts seen before. An offer of a higher attempt means
  that the gate has fenced the running attempt, so the call closes that attempt's stream.
- If a streaming caller got tokens of a lost attempt, the next attempt ends with the delivered tokens. For any other
  caller the next attempt begins from the start. Only the attempt that ends the call is charged.
- Only the worker reports the end of an attempt that it began.
- If the tenant is deleted, a call that waits is cancelled, and a call that runs goes on to its end.
- If the caller of a call without a key leaves, the call is cancelled. A durable call goes on without its caller: this
  process stops holding it. Then another process executes it, or the worker that runs it reports its answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from typing import Any

from dispatcher.model.answers import error_body, error_of_refusal
from dispatcher.model.commands import End, Offer, Outcome, Over, Refused, Unknown
from dispatcher.model.errors import (
    AnsweredError,
    DeadlineExceeded,
    NotAccepted,
    StoreUnavailable,
    TenantDeleted,
    WorkerFailed,
)
from dispatcher.model.worker_protocol import Finished
from dispatcher.operations.calls.call import Call, accept_of
from dispatcher.operations.calls.ends import cancel, end_in_log, error_of_refused, give_back, let_go, take_back
from dispatcher.operations.calls.followed import NOT_TAKEN, Broken, FollowedCall, Item, LastEvent, Signal
from dispatcher.operations.context import Context
from dispatcher.operations.directory import LOOK_S
from dispatcher.operations.limits import WaitingRequest

LATE_S = 2.0
"""A worker ends an execution at its deadline. If it has not done so within this time after it, the stream is closed."""
_LAST_EVENT_S = 3.0
"""After the gate has reported the end of the running attempt, the call waits this long for each further event of it. It
waits longer only while its caller reads so slowly that no events are read."""


logger = logging.getLogger("headgate.gate")

Reaction = Coroutine[Any, Any, Outcome | None]
"""The rest of a reaction that needs the gate or the store. It returns the outcome of its command if the call must react
to that next."""


class Following(FollowedCall):
    """One call, until it ends or this process lets it go. `unread`: no caller reads the events."""

    def __init__(self, context: Context, call: Call, waiting: WaitingRequest | None, *, unread: bool = False) -> None:
        super().__init__(call, context.link(call.pool), context.workers, context.tracing, context.clock, unread=unread)
        self._context = context
        self._waiting = waiting
        self._over: Over | None = None
        """The call's end in the log, while the call still waits for the last event of the running attempt."""
        self._last_wait: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._late_at, self._look_at = call.terms.deadline_at, context.clock.now() + LOOK_S
        self._items: deque[Item] = deque()
        """What it has not reacted to."""
        self._is_busy = True
        """True until the gate's first answer, and while a reaction goes on."""
        if call.is_durable:
            context.durable_calls[call.id] = self
        context.calls.add(self)
        self._link.hold(call.id, self.take)
        self._link.send(accept_of(call, self._link.process), self._take_first)

    def take(self, item: Item) -> None:
        """React to the item, now or after the items before it."""
        self._items.append(item)
        if not self._is_busy:
            self._react_to_items()

    def _take_first(self, outcome: Outcome | StoreUnavailable) -> None:
        """React to the outcome of the first command, before anything else."""
        if isinstance(outcome, StoreUnavailable):
            self._fail(outcome)
        else:
            self._answer_first(outcome)
            self._items.appendleft(outcome)
            self._set_timer()
        self._react_to_items()

    def _react_to_items(self) -> None:
        """React to what waits, up to a reaction that goes on in a task. Wind up if the call is over."""
        self._is_busy = True
        try:
            while self._items and not self._is_over:
                reaction = self._react(self._items.popleft())
                if reaction is not None:
                    self._context.spawn(self._go_on(reaction))
                    return
        except Exception as error:
            self._fail(error)
        if self._is_over:
            self._wind_up()
        else:
            self._is_busy = False

    async def _go_on(self, reaction: Reaction) -> None:
        try:
            outcome = await reaction
            if outcome is not None:
                self._items.appendleft(outcome)
        except Exception as error:
            self._fail(error)
        except BaseException:  # this process ends
            self._end(StoreUnavailable("An error of this server ended the request."))
            raise
        finally:
            self._react_to_items()

    def _fail(self, error: Exception) -> None:
        """End the call with the error of a reaction."""
        if not isinstance(error, AnsweredError):
            logger.error("following a call failed: %s", type(error).__name__, exc_info=error)
            error = StoreUnavailable("An error of this server ended the request.")
        self._end(error)
        if isinstance(error, StoreUnavailable) and (not isinstance(error, NotAccepted) or self._first is not None):
            self._context.spawn_lasting(take_back(self._context, self.call, self._attempts.highest))

    def _react(self, item: Item) -> Reaction | None:
        """React to the item. Return what is left to do, if that takes time."""
        if isinstance(item, Offer):
            return self._on_offer(item)
        if isinstance(item, LastEvent | Broken):
            return self._on_stream_end(item)
        if isinstance(item, Over):
            return self._on_over(item)
        if isinstance(item, Refused):
            self._end(error_of_refused(item))
        elif isinstance(item, Unknown):
            self._end(StoreUnavailable("The gate does not know this request. Send it again."))
        elif item is Signal.LATE:
            return self._on_late()
        elif item is Signal.LOOK:
            return self._on_look()
        elif item is Signal.LEFT and not self._callers:
            return self._on_left()
        return None

    def _set_timer(self) -> None:
        """Signal LATE at the deadline and each LATE_S after it, and LOOK every LOOK_S."""
        wait_s = max(0.0, min(self._late_at, self._look_at) - self._context.clock.now())
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._on_time)

    def _on_time(self) -> None:
        now = self._context.clock.now()
        signal = None
        if now >= self._late_at:
            self._late_at += LATE_S
            signal = Signal.LATE
        elif now >= self._look_at:
            self._look_at += LOOK_S
            signal = Signal.LOOK
        self._set_timer()
        if signal is not None:
            self.take(signal)

    # ── Offers and attempts ────────────────────────────────────────────────────────────────────────────────────────

    def _on_offer(self, offer: Offer) -> Reaction | None:
        attempts = self._attempts
        if offer.attempt <= attempts.highest:
            return None
        if not self._callers or self._is_deleted():
            return self._on_deleted() if self._callers else self._on_left()
        attempts.highest = offer.attempt
        attempts.stop()
        if self._events.is_partly_delivered:
            return self._end_as_delivered(offer)
        attempts.begin(offer)
        self.begun.set()
        if self._waiting is not None:
            self._waiting.release()
        return None

    async def _end_as_delivered(self, offer: Offer) -> None:
        """End the offered attempt without beginning it, with the tokens that the caller got from the lost one."""
        call, got, error = self.call, self._events.collected, WorkerFailed()
        counts, answer = (got.input_tokens, got.output_tokens), error_body(error) if call.is_durable else ""
        end = End(call.id, offer.attempt, "failed", *counts, call.tenant.identity, answer, unbegun=True)
        ended = await self._link.do(end)
        self._end(error)
        if call.is_durable and not isinstance(ended, Over):  # another process may have begun it: then its answer counts
            await let_go(self._context, self.call, begun=offer.attempt - 1)

    def _on_stream_end(self, ended: LastEvent | Broken) -> Reaction | None:
        """React to the end of the running attempt's stream. Ignore the stream of an earlier attempt."""
        if ended.attempt != self._attempts.highest:
            return None
        self._attempts.stop()
        event = ended.event if isinstance(ended, LastEvent) else None
        if isinstance(event, Finished) and self.call.is_durable and ended.attempt > 1:
            # An earlier attempt may have stored another text with as many tokens. Then the stored text is the answer.
            over = Over(self.call.id, ended.attempt, "done", event.input_tokens, event.output_tokens)
            return self._end_in_log(over)
        if isinstance(event, Finished):
            self._events.put(event)
            self._end(None)
        elif event is not None and event.final:
            self._end(error_of_refusal(event))
        elif self._over is not None:
            return self._end_in_log(self._over)
        elif event.code in NOT_TAKEN if event is not None else isinstance(ended, Broken) and not ended.began:
            return give_back(self._context, self.call, ended.attempt, ended.worker)
        return None

    # ── Ends ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_over(self, over: Over) -> Reaction | None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._attempts.is_running or over.attempt != self._attempts.highest:
            return self._end_in_log(over)
        self._over = over
        self._await_last_event(over.attempt)
        return None

    def _await_last_event(self, attempt: int, seen: int = -1) -> None:
        """End the attempt's stream once _LAST_EVENT_S pass without an event and with room in the queue."""
        if self._events.is_full or self._events.count != seen:
            timer = asyncio.get_running_loop().call_later
            self._last_wait = timer(_LAST_EVENT_S, self._await_last_event, attempt, self._events.count)
        else:
            self.take(Broken(attempt, "", began=True))

    async def _end_in_log(self, over: Over) -> None:
        self._end(await end_in_log(self._context, self.call, over, self._events))

    def _on_late(self) -> Reaction | None:
        if self._attempts.is_running and self._context.clock.now() < self.call.terms.deadline_at + LATE_S:
            return None
        self._end(DeadlineExceeded())
        self._attempts.stop()
        return cancel(self._context, self.call, "expired", self._attempts.highest)

    def _on_look(self) -> Reaction | None:
        if self._attempts.is_running:
            return None
        if self._is_deleted():
            return self._on_deleted()
        # in a task of its own: an offer must not wait for the store
        self._context.spawn(self._context.directory.look_again(self.call.tenant.identity))
        return None

    def _is_deleted(self) -> bool:
        return self._context.directory.is_deleted(self.call.tenant.identity)

    def _on_deleted(self) -> Reaction:
        """End a call that no worker runs, because its tenant was deleted."""
        self._end(TenantDeleted())
        return cancel(self._context, self.call, "cancelled", self._attempts.highest)

    def _on_left(self) -> Reaction:
        self._end(None)  # at once, so that no further caller joins
        self._attempts.stop()
        if self.call.is_durable:
            return let_go(self._context, self.call, begun=self._attempts.heard)
        return cancel(self._context, self.call, "cancelled", self._attempts.highest)

    def _end(self, error: AnsweredError | None) -> None:
        """Record the end of the call. Ignore any further end."""
        if not self._is_over:
            self._is_over = True
            self.error = error
            self._events.end(error)

    def _wind_up(self) -> None:
        """Release what the call holds: its stream, its news, its part of the limits, and its places in the context."""
        self._attempts.close()
        if self._waiting is not None:
            self._waiting.release()
        self._link.forget(self.call.id)
        for timer in (self._timer, self._last_wait):
            if timer is not None:
                timer.cancel()
        if self._context.durable_calls.get(self.call.id) is self:
            del self._context.durable_calls[self.call.id]
        self._answer_first(self.error or StoreUnavailable())
        self._context.calls.discard(self)
        self.ended.set()
