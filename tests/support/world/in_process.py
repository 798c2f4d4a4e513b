"""A gate in one process: one shard without a log, and the links of several processes to it.

It does a leader's work in its shortest form: it decides a command, stores the answer of an end before the end, sends
the news to the process that holds the call, launches a durable call that no process holds, and ticks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from dispatcher.model.commands import (
    Accept,
    Cancel,
    Command,
    End,
    Offer,
    Outcome,
    Over,
    Present,
    Report,
    Return,
    Tick,
    call_id,
)
from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.facts import Fact, ProcessSet, WorkerSet
from dispatcher.model.formats import Reader
from dispatcher.model.kept import StoredAnswer
from dispatcher.model.usage import UsageRow
from dispatcher.ports import Clock, InvocationStore, Launcher
from dispatcher.shard.alone import LoneGate
from dispatcher.shard.settings import ShardSettings

HEARD_S = 1.0
"""A process that is called silent is heard again within this time: its link sends signs of life."""
OFFER_S = 2.0
"""An offer that its worker does not begin within this time is returned."""


@dataclass
class InProcessGate:
    """`delay_s`: how long a command takes before it is decided. `down`: no command is decided.

    `replies_lost`: of so many next commands the sender gets no answer.
    """

    store: InvocationStore
    clock: Clock
    launcher: Launcher
    settings: ShardSettings = field(default_factory=ShardSettings)
    delay_s: float = 0.0
    down: bool = False
    replies_lost: int = 0
    commands: list[Command] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    links: dict[str, InProcessLink] = field(default_factory=dict)
    on_offer: Callable[[Offer], None] = lambda _: None
    """Called with each offer, for the workers."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _tick: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self._gate = LoneGate(self.settings)
        self.shard = self._gate.shard

    def link(self, process: str) -> InProcessLink:
        self.links[process] = InProcessLink(self, process)
        return self.links[process]

    async def do(self, command: Command) -> Outcome:
        await asyncio.sleep(self.delay_s)
        if self.down:
            raise StoreUnavailable("The gate is down.")
        if isinstance(command, End) and command.answer and self._is_running(command):
            command = await self._kept(command)
        outcome = self.decide(command)
        if self.replies_lost:
            self.replies_lost -= 1
            raise StoreUnavailable("The reply is lost.")
        return outcome

    def decide(self, command: Command) -> Outcome:
        self.commands.append(command)
        decided = self._gate.decide(command, now=self.clock.now())
        self.facts += decided.facts
        for process, news in decided.news:
            self._deliver(process, news)
        for fact in decided.facts:
            if isinstance(fact, ProcessSet) and fact.state == "silent":
                asyncio.get_running_loop().call_later(HEARD_S, self.decide, Present(fact.process))
        self._tick_when_due()
        return decided.outcome

    def report(self, worker: str, **changes: Any) -> None:
        """Report a worker that runs well, with the test's changes."""
        well = Report(worker, f"http://{worker}", "m", 2, 0, 1.0, 0.0, False, 0.0, 0, ())
        self.decide(well._replace(**changes))

    def decide_cancel(self, call_id: str) -> None:
        """End a call in any state, for a test that leaves it behind."""
        self.decide(Cancel(call_id, "cancelled"))
        call = self.shard.state.calls.get(call_id)
        if call is not None:
            self.decide(Return(call_id, call.attempt, "lost", call.worker))

    async def settle(self) -> None:
        while self.tasks:
            await asyncio.gather(*self.tasks)

    def _deliver(self, process: str, news: Offer | Over) -> None:
        if isinstance(news, Offer):
            self.on_offer(news)
        if process:
            self.links[process].put(news)
        elif isinstance(news, Offer):
            task = asyncio.ensure_future(self.launcher.launch(news.id, news.attempt))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _kept(self, end: End) -> End:
        """Rule 15: the answer is kept before the end. An answer of an earlier attempt stands."""
        counts = end.input_tokens, end.output_tokens
        answer = StoredAnswer(end.outcome, end.attempt, *counts, end.answer, self.clock.now())
        stands = await self.store.answer(end.id, answer) or answer
        read, done = stands.input_tokens, stands.output_tokens
        return end._replace(outcome=stands.outcome, answer=stands.body, input_tokens=read, output_tokens=done)

    def _is_running(self, end: End) -> bool:
        call = self.shard.state.calls.get(end.id)
        if call is None or (end.unbegun and call.watchers and (call.process or not end.kept)):
            return False
        return bool(call.worker) and call.attempt == end.attempt

    def _tick_when_due(self) -> None:
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        due = self.shard.next_tick()
        if due < inf:
            delay_s = max(0.0, due - self.clock.now())
            self._tick = asyncio.get_running_loop().call_later(delay_s, self.decide, Tick())


class InProcessLink:
    """ports.GateLink. `cut_off`: commands fail, and no news arrive."""

    def __init__(self, gate: InProcessGate, process: str) -> None:
        self.process = process
        self.cut_off = False
        self.held: dict[str, Callable[[Offer | Over], None]] = {}
        self.launches: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self.rests = 0
        self._gate = gate
        self._count = 0
        self._open: dict[int, str] = {}
        self._sending: list[asyncio.Task[None]] = []

    @property
    def floor(self) -> int:
        return min(self._open, default=self._count + 1)

    @property
    def open_ids(self) -> list[str]:
        return list(self._open.values())

    def new_id(self, _tenant: str = "", /) -> str:
        self._count += 1
        self._open[self._count] = call_id(self.process, self._count)
        return self._open[self._count]

    async def do(self, command: Command) -> Outcome:
        if self.cut_off:
            raise StoreUnavailable("This process is cut off.")
        if isinstance(command, Accept):
            command = command._replace(floor=self.floor)
        return await self._gate.do(command)

    def send(self, command: Command, take: Callable[[Outcome | StoreUnavailable], None]) -> None:
        async def done() -> None:
            try:
                take(await self.do(command))
            except StoreUnavailable as error:
                take(error)

        self._sending.append(asyncio.ensure_future(done()))

    def hold(self, call_id: str, take: Callable[[Offer | Over], None]) -> None:
        self.held[call_id] = take

    def put(self, news: Offer | Over) -> None:
        if news.id in self.held and not self.cut_off:
            asyncio.get_running_loop().call_soon(self.held[news.id], news)

    def forget(self, call_id: str) -> None:
        self.held.pop(call_id, None)
        self._open = {number: name for number, name in self._open.items() if name != call_id}

    async def launched(self) -> tuple[str, int]:
        return await self.launches.get()

    async def readers(self) -> Sequence[Reader] | None:
        return []

    async def fleet(self) -> Sequence[WorkerSet]:
        if self.cut_off or self._gate.down:
            raise StoreUnavailable("This process is cut off.")
        return self._gate.shard.fleet()

    async def usage(self, tenant: str | None, first_hour: int, last_hour: int) -> Sequence[tuple[int, UsageRow]]:
        rows = self._gate.shard.usage_rows()
        return [(0, row) for row in rows if tenant in (None, row.tenant) and first_hour <= row.hour <= last_hour]

    async def rest(self) -> None:
        self.rests += 1
