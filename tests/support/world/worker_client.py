"""Workers as a front sees them, scripted: the test decides what they deliver, refuse and break; nothing is mocked.

Like the real ones they begin an attempt once, never run more of them than they have slots, stop at the deadline, and
report every end to the gate before the last event goes to the front. An offer that is not begun in time is returned.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from dispatcher.model.answers import Collected, error_body, error_of_refusal
from dispatcher.model.commands import Command, End, Offer, Outcome, Over, Return
from dispatcher.model.errors import StoreUnavailable, WorkerFailed
from dispatcher.model.requests import Endpoint
from dispatcher.model.worker_protocol import Finished, Started, Token, WorkEvent, WorkOrder, WorkRefused, execution_name
from dispatcher.ports import AttemptEvents, Clock, RunningAttempt
from tests.support.attempts import GeneratedAttempt
from tests.support.world.in_process import OFFER_S, InProcessGate

REPEAT_S = 0.5
LOST_AFTER_S = 1.0
"""After this time the gate learns that a worker which died runs nothing any more."""


EVICTED = WorkRefused(503, "preempted", "Evicted.", 12.0, final=True)
"""The end of an execution that makes room for more urgent work."""


@dataclass(frozen=True)
class Act:
    """How one execution goes."""

    unreachable: bool = False
    refuses: WorkRefused | None = None
    start_s: float = 0.0
    """Before it says that it started."""
    token_s: float = 0.1
    breaks_after: int | None = None
    """The worker dies after so many tokens; its execution is lost."""
    drops_after: int | None = None
    """The worker ends it after so many tokens, with `drops_as`."""
    drops_as: WorkRefused = EVICTED
    aborts_after: int | None = None
    """The worker ends it by itself (draining) and returns it."""
    ends_silently_after: int | None = None
    """The stream ends without its last event, and the worker dies."""
    cut_at_end: bool = False
    """The end is in the log, and the connection breaks before the last event."""
    word: str = "x"
    pieces: tuple[Token, ...] = ()
    """The pieces of the answer, instead of `word` as often as the request wants tokens."""
    input_tokens: int = 10
    reason: str = "length"


WELL = Act()
UNREACHABLE = Act(unreachable=True)
FULL = Act(refuses=WorkRefused(503, "worker_full", "All slots of this worker are taken."))
SHED = Act(refuses=WorkRefused(429, "overloaded", "Overloaded.", 7.0, final=True))


def dies_after(tokens: int) -> Act:
    return Act(breaks_after=tokens)


def refuses(status: int, code: str = "some_code", message: str = "Some message.") -> Act:
    return Act(refuses=WorkRefused(status, code, message, final=status < 500 and status != 401))


@dataclass
class ScriptedWorkers:
    """ports.WorkerClient. `acts` are taken from the front, one an execution; then all goes well."""

    gate: InProcessGate
    clock: Clock
    acts: deque[Act] = field(default_factory=deque)
    orders: list[tuple[str, WorkOrder]] = field(default_factory=list)
    """(worker, order) of every call, the refused ones too."""
    live: dict[str, str] = field(default_factory=dict)
    """execution -> worker"""
    closed: list[str] = field(default_factory=list)
    """Executions that the gate left in the middle."""
    most_live: Counter[str] = field(default_factory=Counter)
    dead: set[str] = field(default_factory=set)
    """Workers that were killed: their executions are lost."""
    not_begun: list[str] = field(default_factory=list)
    """Offers that were returned because no order for them came."""
    seen: set[str] = field(default_factory=set)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.gate.on_offer = self._offered

    def execute(self, offer: Offer, order: WorkOrder, events: AttemptEvents) -> RunningAttempt:
        return GeneratedAttempt(self.generate(offer, order), events)

    async def generate(self, offer: Offer, order: WorkOrder) -> AsyncGenerator[WorkEvent, None]:
        self.orders.append((offer.worker, order))
        if order.execution in self.seen:
            yield WorkRefused(409, "seen_already", "This attempt reached this worker before.")
            return
        act = self.acts.popleft() if self.acts else WELL
        if act.unreachable or offer.worker in self.dead:
            raise WorkerFailed(began=False)
        self.seen.add(order.execution)
        if act.refuses is not None:
            yield await self._refused(offer, order, act.refuses)
            return
        run = _Execution(self, offer, order, act)
        self._begin(offer.worker, order.execution)
        try:
            async for event in run.events():
                yield event
        except (GeneratorExit, asyncio.CancelledError):
            self.closed.append(order.execution)
            self._spawn(run.on_left())
            raise
        finally:
            if not order.terms.durable or run.is_over:
                self.live.pop(order.execution, None)
        if run.last is not None:
            yield run.last

    async def close(self) -> None: ...

    async def wound_up(self) -> None:
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, worker: str, execution: str) -> None:
        self.live[execution] = worker
        live = sum(held == worker for held in self.live.values())
        self.most_live[worker] = max(self.most_live[worker], live)

    async def _refused(self, offer: Offer, order: WorkOrder, refusal: WorkRefused) -> WorkRefused:
        if refusal.status == 401:
            self.seen.discard(order.execution)
            return WorkRefused(401, "grant_refused", refusal.message)
        if not refusal.final:
            reason = "failed" if refusal.status == 500 else "refused"
            await self.gate.do(Return(order.invocation, order.attempt, reason, offer.worker))
            return refusal
        await self.gate.do(_end(order, "failed", 0, 0, refusal))
        return refusal

    def _offered(self, offer: Offer) -> None:
        asyncio.get_running_loop().call_later(OFFER_S, lambda: self._spawn(self._fence(offer)))

    async def _fence(self, offer: Offer) -> None:
        """Return an offer that is not begun in time. Its order is refused from then on."""
        name = execution_name(offer.id, offer.attempt)
        call = self.gate.shard.state.calls.get(offer.id)
        is_held = call is not None and call.worker == offer.worker and call.attempt == offer.attempt
        if is_held and name not in self.seen:
            self.seen.add(name)
            self.not_begun.append(name)
            await self._repeated(Return(offer.id, offer.attempt, "not_begun", offer.worker))

    def lost(self, offer: Offer) -> None:
        """The attempt's worker died: the gate learns it later."""
        self._spawn(self._lose(offer))

    async def _lose(self, offer: Offer) -> None:
        await asyncio.sleep(LOST_AFTER_S)
        await self.gate.do(Return(offer.id, offer.attempt, "lost", offer.worker))

    async def _repeated(self, command: Command) -> None:
        """Give the gate a report that no stream waits for, as often as it takes."""
        while True:
            try:
                await self.gate.do(command)
            except StoreUnavailable:
                await asyncio.sleep(REPEAT_S)
            else:
                return

    async def on_reported(self, command: Command) -> Outcome:
        """Give the gate a report. A caller that leaves meanwhile does not stop it."""
        reporting = asyncio.ensure_future(self.gate.do(command))
        self._tasks.add(reporting)
        reporting.add_done_callback(self._tasks.discard)
        return await asyncio.shield(reporting)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Execution:
    """One execution. `last`: the last event, when the gate has the end."""

    def __init__(self, workers: ScriptedWorkers, offer: Offer, order: WorkOrder, act: Act) -> None:
        self.last: WorkEvent | None = None
        self.is_over = False
        self._workers, self._offer, self._order, self._act = workers, offer, order, act
        self._done = 0
        self._sent = Collected()
        self._total = min(order.max_tokens, len(act.pieces) or order.likely_tokens)

    async def events(self) -> AsyncGenerator[WorkEvent, None]:
        act, order = self._act, self._order
        await asyncio.sleep(act.start_s)
        yield Started(act.input_tokens)
        for token in _embeddings(order):
            self._sent.note(token)
            yield token
        while self._done < self._total:
            await asyncio.sleep(act.token_s)
            if self._done in (act.breaks_after, act.ends_silently_after) or self._offer.worker in self._workers.dead:
                self._workers.lost(self._offer)
                self._over()
                if self._done == act.ends_silently_after:
                    return
                raise WorkerFailed()
            if self._done == act.drops_after:
                self.last = await self._ended("failed", act.drops_as)
                return
            if self._done == act.aborts_after:
                self.last = await self._returned()
                return
            if self._workers.clock.now() >= order.terms.deadline_at:
                late = WorkRefused(504, "deadline_exceeded", "Late.", final=True)
                self.last = await self._ended("expired", late)
                return
            yield self._next()
        self.last = await self._ended("done", None)

    async def on_left(self) -> None:
        """The front closed the stream: a durable call runs to its end, any other is cancelled."""
        if self.is_over:
            return
        if self._offer.worker in self._workers.dead:
            self._over()
        elif not self._order.terms.durable:
            self._over()
            await self._workers.gate.do(_end(self._order, "cancelled", self._act.input_tokens, self._done, None))
        else:
            while self._done < self._total:
                await asyncio.sleep(self._act.token_s)
                self._next()
            await self._ended("done", None)

    def _next(self) -> Token:
        act = self._act
        piece = act.pieces[self._done] if act.pieces else Token(act.word, 0)
        self._done += 1
        token = replace(piece, output_tokens=self._done)
        self._sent.note(token)
        return token

    async def _ended(self, outcome: str, refusal: WorkRefused | None) -> WorkEvent | None:
        self._over()
        act = self._act
        read = act.input_tokens if self._done or outcome != "failed" else 0
        self._sent.note(Finished(act.reason, read, self._done))
        answer = json.dumps({"choices": self._sent.choices()})
        end = _end(self._order, outcome, read, self._done, refusal, answer)
        over = await self._workers.on_reported(end)
        if not isinstance(over, Over) or over.outcome != outcome or act.cut_at_end:
            raise WorkerFailed()
        return refusal or Finished(act.reason, act.input_tokens, self._done)

    async def _returned(self) -> WorkEvent:
        self._over()
        refusal = WorkRefused(503, "draining", "This worker stops.")
        if self._done and self._order.streamed and not self._order.terms.durable:
            await self._workers.gate.do(_end(self._order, "failed", self._act.input_tokens, self._done, refusal))
            return WorkRefused(503, "draining", "This worker stops.", final=True)
        await self._workers.gate.do(Return(self._order.invocation, self._order.attempt, "refused", self._offer.worker))
        return refusal

    def _over(self) -> None:
        self.is_over = True
        self._workers.live.pop(self._order.execution, None)


def _end(order: WorkOrder, outcome: str, read: int, done: int, refusal: WorkRefused | None, answer: str = "") -> End:
    kept = error_body(error_of_refusal(refusal)) if refusal is not None else answer
    return End(
        order.invocation, order.attempt, outcome, read, done, order.terms.tenant, kept if order.terms.durable else ""
    )


def _embeddings(order: WorkOrder) -> list[Token]:
    if order.endpoint is not Endpoint.EMBEDDINGS:
        return []
    return [Token("", 0, number, {"embedding": [float(number), 1.0]}) for number, _ in enumerate(order.body["input"])]
