"""The caller's side of one call: a task that sends the call to the gate, begins its offers, and streams its events.

The task reacts at once to news and events, even if the caller reads slowly, because an offer that is not begun in time
suspends all calls of this process. The caller reads the events from a bounded queue.

The task follows these rules (docs/gate.md, rules 3 to 6 and 15):
- It begins an offer only if the offer's attempt is above all attempts seen before. An offer of a higher attempt means
  that the gate has fenced the running attempt, so the task closes that attempt's stream.
- If a streaming caller got tokens of a lost attempt, the task ends the next attempt with the delivered tokens. For any
  other caller the next attempt begins from the start. Only the attempt that ends the call is charged.
- Only the worker reports the end of an attempt that it began.
- If the tenant is deleted, a call that waits is cancelled, and a call that runs goes on to its end.
- If the caller of a call without a key leaves, the call is cancelled. A durable call goes on without its caller: this
  process stops holding it. Then another process executes it, or the worker that runs it reports its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

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
"""After the gate has reported the end of the running attempt, the task waits this long for each further event of it. It
waits longer only while the caller reads so slowly that the task reads no events."""


class Following(FollowedCall):
    """The task of one call, until the call ends or this process lets it go. `unread`: no caller reads the events."""

    def __init__(self, context: Context, call: Call, waiting: WaitingRequest | None, *, unread: bool = False) -> None:
        super().__init__(call, context.link(call.pool), context.workers, context.tracing, unread=unread)
        self._context = context
        self._waiting = waiting
        self._over: Over | None = None
        """The call's end in the log, while the task still waits for the last event of the running attempt."""
        self._last_wait: asyncio.TimerHandle | None = None
        if call.is_durable:
            context.durable_calls[call.id] = self
        context.spawn(self._run())

    async def _run(self) -> None:
        watching: asyncio.Task[None] | None = None
        try:
            outcome = await self._link.do(accept_of(self.call, self._link, self._link.process))
            self._first.set_result(outcome)
            watching = asyncio.ensure_future(_watch(self._context, self.call, self._inbox.put_nowait))
            await self._follow(outcome)
        except StoreUnavailable as error:
            self._end(error)
            if not isinstance(error, NotAccepted) or self._first.done():
                self._context.spawn_lasting(take_back(self._context, self.call, self._attempts.highest))
        except AnsweredError as error:
            self._end(error)
        except BaseException:
            self._end(StoreUnavailable("An error of this server ended the request."))
            raise
        finally:
            if watching is not None:
                watching.cancel()
            self._attempts.close()
            self._wind_up()

    async def _follow(self, item: Item | None) -> None:
        while not self._is_over:
            if item is None:
                item = await self._inbox.get()
            item = await self._react(item)

    async def _react(self, item: Item) -> Outcome | None:
        """React to the item. If this sent a command, return its outcome when the task must react to that next."""
        if isinstance(item, Offer):
            await self._on_offer(item)
        elif isinstance(item, Over):
            await self._on_over(item)
        elif isinstance(item, Refused):
            self._end(error_of_refused(item))
        elif isinstance(item, Unknown):
            self._end(StoreUnavailable("The gate does not know this request. Send it again."))
        elif isinstance(item, LastEvent | Broken):
            return await self._on_stream_end(item)
        elif item is Signal.LATE:
            await self._on_late()
        elif item is Signal.LOOK:
            await self._on_look()
        elif item is Signal.LEFT and not self._callers:
            await self._on_left()
        return None

    # ── Offers and attempts ────────────────────────────────────────────────────────────────────────────────────────

    async def _on_offer(self, offer: Offer) -> None:
        attempts = self._attempts
        if offer.attempt <= attempts.highest:
            return
        if not self._callers or self._is_deleted():
            await (self._on_deleted() if self._callers else self._on_left())
            return
        attempts.highest = offer.attempt
        attempts.stop()
        if self._events.is_partly_delivered:
            await self._end_as_delivered(offer)
            return
        attempts.begin(offer)
        self.begun.set()
        if self._waiting is not None:
            self._waiting.release()

    async def _end_as_delivered(self, offer: Offer) -> None:
        """End the offered attempt without beginning it, with the tokens that the caller got from the lost one."""
        call, got, error = self.call, self._events.collected, WorkerFailed()
        counts, answer = (got.input_tokens, got.output_tokens), error_body(error) if call.is_durable else ""
        end = End(call.id, offer.attempt, "failed", *counts, call.tenant.identity, answer, unbegun=True)
        ended = await self._link.do(end)
        self._end(error)
        if call.is_durable and not isinstance(ended, Over):  # another process may have begun it: then its answer counts
            await let_go(self._context, self.call, begun=offer.attempt - 1)

    async def _on_stream_end(self, ended: LastEvent | Broken) -> Outcome | None:
        """React to the end of the running attempt's stream. Ignore the stream of an earlier attempt."""
        if ended.attempt != self._attempts.highest:
            return None
        self._attempts.stop()
        event = ended.event if isinstance(ended, LastEvent) else None
        if isinstance(event, Finished) and self.call.is_durable and ended.attempt > 1:
            # An earlier attempt may have stored another text with as many tokens. Then the stored text is the answer.
            over = Over(self.call.id, ended.attempt, "done", event.input_tokens, event.output_tokens)
            self._end(await self._end_in_log(over))
        elif isinstance(event, Finished):
            self._events.put_now(event)
            self._end(None)
        elif event is not None and event.final:
            self._end(error_of_refusal(event))
        elif self._over is not None:
            self._end(await self._end_in_log(self._over))
        elif event.code in NOT_TAKEN if event is not None else isinstance(ended, Broken) and not ended.began:
            return await give_back(self._context, self.call, ended.attempt, ended.worker)
        return None

    # ── Ends ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _on_over(self, over: Over) -> None:
        if not self._attempts.is_running or over.attempt != self._attempts.highest:
            self._end(await self._end_in_log(over))
            return
        self._over = over
        self._await_last_event(over.attempt)

    def _await_last_event(self, attempt: int, seen: int = -1) -> None:
        """End the attempt's stream once _LAST_EVENT_S pass without an event and with room in the queue."""
        if self._events.is_full or self._events.count != seen:
            timer = asyncio.get_running_loop().call_later
            self._last_wait = timer(_LAST_EVENT_S, self._await_last_event, attempt, self._events.count)
        else:
            self._inbox.put_nowait(Broken(attempt, "", began=True))

    async def _end_in_log(self, over: Over) -> AnsweredError | None:
        return await end_in_log(self._context, self.call, over, self._events)

    async def _on_late(self) -> None:
        if self._attempts.is_running and self._context.clock.now() < self.call.terms.deadline_at + LATE_S:
            return
        self._end(DeadlineExceeded())
        self._attempts.stop()
        await cancel(self._context, self.call, "expired", self._attempts.highest)

    async def _on_look(self) -> None:
        if self._is_deleted() and not self._attempts.is_running:
            await self._on_deleted()
        elif not self._attempts.is_running:  # in a task of its own: an offer must not wait for the store
            self._context.spawn(self._context.directory.look_again(self.call.tenant.identity))

    def _is_deleted(self) -> bool:
        return self._context.directory.is_deleted(self.call.tenant.identity)

    async def _on_deleted(self) -> None:
        """End a call that no worker runs, because its tenant was deleted."""
        self._end(TenantDeleted())
        await cancel(self._context, self.call, "cancelled", self._attempts.highest)

    async def _on_left(self) -> None:
        self._end(None)  # at once, so that no further caller joins
        self._attempts.stop()
        if self.call.is_durable:
            await let_go(self._context, self.call, begun=self._attempts.heard)
        else:
            await cancel(self._context, self.call, "cancelled", self._attempts.highest)

    def _end(self, error: AnsweredError | None) -> None:
        """Record the end of the call. Ignore any further end."""
        if not self._is_over:
            self._is_over = True
            self.error = error
            self._events.end(error)

    def _wind_up(self) -> None:
        """Release what the call holds: its news, its part of the limits, and its place among the durable calls."""
        if self._waiting is not None:
            self._waiting.release()
        self._link.forget(self.call.id)
        if self._last_wait is not None:
            self._last_wait.cancel()
        if self._context.durable_calls.get(self.call.id) is self:
            del self._context.durable_calls[self.call.id]
        if not self._first.done():
            self._first.set_exception(self.error or StoreUnavailable())
            self._first.exception()  # a caller that has left does not read it
        self.ended.set()


async def _watch(context: Context, call: Call, put: Callable[[Offer | Over | Signal], None]) -> None:
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
