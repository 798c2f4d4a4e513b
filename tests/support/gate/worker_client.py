"""Workers as the gate sees them, scripted: the test decides what they deliver, refuse and break; nothing is mocked.

Like the real ones they run an execution once, never more of them than they have slots, stop at the deadline, and settle
by themselves what their gate left in the middle.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from dispatcher.model.errors import WorkerFailed
from dispatcher.model.old_fleet import Worker
from dispatcher.model.worker_protocol import Finished, Started, Token, WorkEvent, WorkOrder, WorkRefused
from dispatcher.old_operations.settle import settle_lost
from dispatcher.old_ports import Clock, Store


@dataclass(frozen=True)
class Act:
    """How one execution goes."""

    unreachable: bool = False
    refuses: WorkRefused | None = None
    start_s: float = 0.0
    """Before it says that it started."""
    token_s: float = 0.1
    breaks_after: int | None = None
    """The worker dies after so many tokens; its execution is not settled."""
    drops_after: int | None = None
    """The worker ends it after so many tokens, to make room for more urgent work."""
    aborts_after: int | None = None
    """The worker ends it by itself (draining, lease lost) and says so."""
    ends_silently_after: int | None = None
    """The stream ends without its last event."""
    word: str = "x"
    input_tokens: int = 10
    reason: str = "length"


WELL = Act()
UNREACHABLE = Act(unreachable=True)
FULL = Act(refuses=WorkRefused(503, "worker_full", "All slots of this worker are taken."))


SHED = Act(refuses=WorkRefused(429, "overloaded", "Overloaded.", 7.0))


def dies_after(tokens: int) -> Act:
    return Act(breaks_after=tokens)


def refuses(status: int, code: str = "some_code", message: str = "Some message.") -> Act:
    return Act(refuses=WorkRefused(status, code, message))


@dataclass
class ScriptedWorkers:
    """ports.WorkerClient. `acts` are taken from the front, one an execution; then all goes well."""

    store: Store
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
    """Workers that were killed: their executions are lost and not settled."""
    tried: Counter[str] = field(default_factory=Counter)
    """Calls by execution, without those that found it running already."""
    overlaps: list[str] = field(default_factory=list)
    """Executions that were still running in a slot when another was to be put into it."""
    _slot_of: dict[str, int] = field(default_factory=dict)
    _settling: set[asyncio.Task[object]] = field(default_factory=set)

    async def execute(self, worker: Worker, order: WorkOrder) -> AsyncGenerator[WorkEvent, None]:
        self.orders.append((worker.id, order))
        act = self.acts.popleft() if self.acts else WELL
        is_again = order.execution in self.live and not act.unreachable
        self.tried[order.execution] += not is_again
        if act.unreachable or worker.id in self.dead:
            raise WorkerFailed()
        self.overlaps += [] if is_again else self._in_slot(worker.id, order.slot)
        refusal = self._refusal(worker, order) or act.refuses
        if refusal is not None:
            yield refusal
            return
        self.live[order.execution] = worker.id
        self._slot_of[order.execution] = order.slot
        self.most_live[worker.id] = max(self.most_live[worker.id], self._live_on(worker))
        done, reason = 0, act.reason
        try:
            await asyncio.sleep(act.start_s)
            yield Started(act.input_tokens)
            while done < order.max_tokens:
                await asyncio.sleep(act.token_s)
                if done == act.breaks_after or worker.id in self.dead:
                    raise WorkerFailed()
                if done == act.ends_silently_after:
                    return
                if done == act.drops_after:
                    yield WorkRefused(503, "preempted", "Evicted.", 12.0)
                    return
                if done == act.aborts_after or self.clock.now() >= order.deadline_at:
                    reason = "aborted"
                    break
                done += 1
                yield Token(act.word, done)
        except (GeneratorExit, asyncio.CancelledError):
            self.closed.append(order.execution)
            if worker.id not in self.dead:
                self._settle(order, act.input_tokens, done)
            raise
        finally:
            self.live.pop(order.execution, None)  # before its end is read, because it waits for no reader
        yield Finished(reason, act.input_tokens, done)

    async def wound_up(self) -> None:
        while self._settling:
            await asyncio.gather(*self._settling, return_exceptions=True)

    def _in_slot(self, worker: str, slot: int) -> list[str]:
        return [name for name, on in self.live.items() if (on, self._slot_of[name]) == (worker, slot)]

    def _refusal(self, worker: Worker, order: WorkOrder) -> WorkRefused | None:
        if order.execution in self.live:
            return WorkRefused(409, "running_already", "This execution is running already.")
        if self._live_on(worker) >= worker.slots:
            return WorkRefused(503, "worker_full", "All slots of this worker are taken.")
        return None

    def _live_on(self, worker: Worker) -> int:
        return sum(held == worker.id for held in self.live.values())

    def _settle(self, order: WorkOrder, input_tokens: int, output_tokens: int) -> None:
        counts = {"input_tokens": input_tokens, "output_tokens": output_tokens}
        lost = settle_lost(self.store, self.clock, order.tenant, order.invocation, order.attempt, **counts)
        task = asyncio.ensure_future(lost)
        self._settling.add(task)
        task.add_done_callback(self._settled)

    def _settled(self, task: asyncio.Task[object]) -> None:
        self._settling.discard(task)
        task.cancelled() or task.exception()  # a worker that cannot reach the table leaves it to the reaper
