"""An engine that is watched, and replaced when it dies or hangs. Its progress is watched, not a health page.

It hangs if it has requests for `hang_s` in all, and meanwhile no token, no end and no change of its cache or batch
shows progress. New and aborted requests are no progress: they come and go also while an engine hangs. It is dead if a
request ends with an error of _DEAD. In both cases all running requests end with `engine_restarted`, which the gate
settles or tries elsewhere, and another engine is started. Until it serves, AbsentEngine stands in. The service that
tenants received is carried over; the counters of all tenants start again together, so no tenant gains by it. More than
RESTARTS_MAX restarts within _RESTARTS_WITHIN_S, an engine that cannot be stopped, or one that does not start, ends the
worker (`hopeless`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from dispatcher.ports import Clock
from gpu_worker.engines.interface import (
    Engine,
    EngineError,
    EngineEvent,
    EngineFacts,
    EngineStats,
    Finished,
    SleepableEngine,
    Token,
    WorkOrder,
)


@dataclass
class SwapCounts:
    """Swaps of the model that ended well, swaps that failed, and the seconds of the last good one.

    `sleeps` and `wakes` ended well. After a failed one the engine was stopped. `evicted`: sleeping engines that were
    stopped to make room for others. `wake_s`: seconds of the last good swap that woke an engine.
    """

    done: int = 0
    failed: int = 0
    last_s: float = 0.0
    sleeps: int = 0
    sleeps_failed: int = 0
    wakes: int = 0
    wakes_failed: int = 0
    evicted: int = 0
    wake_s: float = 0.0


logger = logging.getLogger("headgate.engine")

RESTARTS_MAX = 5
_RESTARTS_WITHIN_S = 600.0
_STOP_S = 20.0
_START_S = 1800.0
"""Enough to read a model of hundreds of gigabytes."""
_WAKE_S = 120.0
_DEAD = frozenset({"engine_failed", "engine_stopped"})
"""Error codes after which an engine serves no request any more."""


MakeEngine = Callable[[], Engine]
PutAway = Callable[[Engine], Awaitable[None]]


class AbsentEngine:
    """The engine of a worker that has none for a moment. It stands in between two engines and serves nothing."""

    def __init__(self, facts: EngineFacts) -> None:
        self.facts = facts

    async def generate(self, request: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
        raise restarted()
        yield

    async def abort(self, request_id: str) -> None:
        """Do nothing: no request runs."""

    def stats(self) -> EngineStats:
        return EngineStats(0, 0, 0.0, {})

    async def start(self) -> None:
        raise restarted()

    async def stop(self) -> None:
        """Do nothing."""


@dataclass(eq=False)
class SupervisedEngine:
    """`make` makes an engine, not started; `apart` runs `make` without blocking the event loop. `hang_s`: longer than
    the longest step with a prompt in it.

    `hopeless` is set when no engine can be started any more: the worker should end.
    """

    make: MakeEngine
    clock: Clock
    hang_s: float = 60.0
    watch_s: float = 0.5
    apart: Callable[[MakeEngine], Awaitable[Engine]] = asyncio.to_thread
    restarts: int = 0
    swaps: SwapCounts = field(default_factory=SwapCounts)
    """Counted by model_swaps.py and sleeping_engines.py."""
    asleep: dict[str, SleepableEngine] = field(default_factory=dict)
    """Engines that sleep, by model, the least recently used one first. Filled by sleeping_engines.py."""
    hopeless: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when `serves` changes. Its reader clears it."""

    def __post_init__(self) -> None:
        self._engine: Engine = self.make()
        self._facts: EngineFacts | None = None
        self._running: dict[str, asyncio.Future[Any]] = {}
        """Maps a request's id to a future that is set when the request's engine is gone."""
        self._ended = EngineStats(0, 0, 0.0, {})
        """Stats of the engines that were stopped."""
        self._at_exchange = self._ended
        """Stats over all engines when the last exchange began."""
        self._stalled_s = 0.0
        """Seconds with requests since the last progress."""
        self._seen: tuple[float, ...] = ()
        self._ready = asyncio.Event()
        self._dead = asyncio.Event()
        self._restarted_s: deque[float] = deque()
        self._watching: asyncio.Task[None] | None = None
        self._exchanging = asyncio.Lock()
        """Held while one engine is exchanged for another."""

    def serves(self) -> bool:
        """False while the engine is dead or being replaced."""
        return self._ready.is_set() and not self._dead.is_set()

    @property
    def facts(self) -> EngineFacts:
        """The facts of the model. Some engines know them only after `start`."""
        return self._facts or self._engine.facts

    async def start(self) -> None:
        """Start the first engine. Raises what its own `start` raises."""
        await self._engine.start()
        self._facts = self._engine.facts
        self._ready.set()
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await asyncio.gather(*(engine.stop() for engine in self.asleep.values()), return_exceptions=True)
        await self._engine.stop()

    async def load(
        self,
        make: MakeEngine,
        *,
        put_away: PutAway | None = None,
        woken: SleepableEngine | None = None,
        check: Callable[[Engine], Awaitable[None]] | None = None,
    ) -> None:
        """Serve with another engine, perhaps of another model, from now on. Requests that still run end as restarted.

        `put_away`: what happens to the engine so far; by default, `end`. `woken`: an engine of `asleep`, which is woken
        instead of a start of `make`'s. `check` raises if the new engine must not serve.

        Raises what these raise. Then no engine serves until the next `load`.
        """
        async with self._exchanging:
            self._leave()
            await self._exchange(make, put_away, woken)
            if check is not None:
                await check(self._engine)
            self.make, self._facts = make, self._engine.facts
            self._serve_again()

    async def end(self, engine: Engine) -> None:
        """Stop an engine for good, and keep its counts. Raises TimeoutError, and what its `stop` raises."""
        last = engine.stats()
        async with asyncio.timeout(_STOP_S):
            await engine.stop()
        self._ended = last.plus(self._ended)

    async def generate(self, request: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
        if not self.serves():
            raise restarted()
        gone: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        async with aclosing(self._engine.generate(request)) as events:
            async for event in self._watch_events(request.execution, events, gone):
                yield event

    async def _watch_events(
        self, request_id: str, events: AsyncGenerator[EngineEvent, None], gone: asyncio.Future[Any]
    ) -> AsyncGenerator[EngineEvent, None]:
        self._running[request_id] = gone
        try:
            while True:
                upcoming: asyncio.Future[Any] = asyncio.ensure_future(anext(events))
                await asyncio.wait({upcoming, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not upcoming.done():
                    upcoming.cancel()
                    await asyncio.gather(upcoming, return_exceptions=True)
                    raise restarted()
                event = self._take_event(upcoming, gone)
                if isinstance(event, Finished):
                    break
                yield event
        finally:
            self._running.pop(request_id, None)
        # No longer among the running requests: the reader may keep this stream open while the gate cannot be reached.
        yield event

    async def abort(self, request_id: str) -> None:
        await self._engine.abort(request_id)

    def stats(self) -> EngineStats:
        """Return the stats over all engines; while the engine is being replaced, as of its end."""
        if self._watching is not None and not self._ready.is_set():
            return self._at_exchange
        total = self._engine.stats().plus(self._ended)
        for engine in self.asleep.values():
            total = total.plus(engine.stats())
        return total

    def _take_event(self, upcoming: asyncio.Future[Any], gone: asyncio.Future[Any]) -> EngineEvent:
        """Return the event, and note the progress; raise `restarted` if the engine is dead."""
        try:
            event: EngineEvent = upcoming.result()
        except StopAsyncIteration:
            raise restarted() from None
        except EngineError as error:
            if error.code not in _DEAD:
                self._stalled_s = 0.0
                raise
            if not gone.done():  # else a slow reader gets the error after the engine was replaced
                self._dead.set()
                self.changed.set()
            raise restarted() from None
        if isinstance(event, Token) or (isinstance(event, Finished) and event.reason != "aborted"):
            self._stalled_s = 0.0
        return event

    async def _watch(self) -> None:
        while not self.hopeless.is_set():
            waiting = asyncio.ensure_future(self._dead.wait())
            pause = asyncio.ensure_future(self.clock.sleep(self.watch_s))
            await asyncio.wait({waiting, pause}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            pause.cancel()
            if self._exchanging.locked():
                await self.clock.sleep(self.watch_s)
                continue
            if self._dead.is_set():
                await self._replace("it is dead")
                continue
            self._check_progress()
            if self._stalled_s > self.hang_s:
                await self._replace(f"{len(self._running)} requests made no progress for {self.hang_s:g} s")

    def _check_progress(self) -> None:
        """Note progress without events: a long prompt in pieces takes more and more of the cache.

        Each check adds `watch_s`, so a pause of this process or a jump of the clock is no hang.
        """
        stats = self._engine.stats()
        seen = (stats.kv_use, stats.running, sum(got.service for got in stats.tenants.values()))
        if seen != self._seen:
            self._seen, self._stalled_s = seen, 0.0
        elif self._running:
            self._stalled_s += self.watch_s

    async def _replace(self, why: str) -> None:
        logger.error("the engine is replaced: %s", why)
        async with self._exchanging:
            self._leave()
            try:
                self._count_restart()
                await self._exchange(self.make)
                self._check_facts()
            except Exception as error:  # of any kind: there is no engine
                logger.error("no engine can be started: %s: %s", type(error).__name__, error)
                self.hopeless.set()
                return
            self.restarts += 1
            self._serve_again()
        logger.info("a new engine serves")

    def _leave(self) -> None:
        """Serve nothing from now on. Keep the engine's counts, and end its requests."""
        self._at_exchange = self.stats()
        self._ready.clear()
        self.changed.set()
        for gone in self._running.values():
            if not gone.done():
                gone.set_result(None)

    async def _exchange(
        self,
        make: MakeEngine,
        put_away: PutAway | None = None,
        woken: SleepableEngine | None = None,
    ) -> None:
        """Put the engine away, and start or wake another one."""
        if not isinstance(self._engine, AbsentEngine):
            await (put_away or self.end)(self._engine)
        self._engine = AbsentEngine(self.facts)  # frees the old model: two may need too much memory
        if woken is None:
            async with asyncio.timeout(_START_S):
                self._engine = await self.apart(make)
                await self._engine.start()
        else:
            self._engine = self.asleep.pop(woken.facts.model)
            async with asyncio.timeout(_WAKE_S):
                await woken.wake()

    def _serve_again(self) -> None:
        self._stalled_s = 0.0
        self._dead.clear()
        self._ready.set()
        self.changed.set()

    def _check_facts(self) -> None:
        """Raises RuntimeError if the engine has another model, or a shorter context, than the gate expects.

        An engine that measures its memory may find more of it than the one before.
        """
        before, now = self.facts, self._engine.facts
        if now.model != before.model or now.context_tokens < before.context_tokens:
            raise RuntimeError("the engine has another model or a shorter context than before")

    def _count_restart(self) -> None:
        """Raises RuntimeError if there were too many restarts."""
        now_s = self.clock.monotonic()
        self._restarted_s.append(now_s)
        while now_s - self._restarted_s[0] > _RESTARTS_WITHIN_S:
            self._restarted_s.popleft()
        if len(self._restarted_s) > RESTARTS_MAX:
            raise RuntimeError(f"{RESTARTS_MAX} restarts within {_RESTARTS_WITHIN_S:g} s")


def restarted() -> EngineError:
    return EngineError("engine_restarted", "the engine was restarted while it worked on this request; send it again")
