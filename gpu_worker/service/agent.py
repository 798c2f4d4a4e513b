"""The agent reports the worker to the gate by heartbeats, and acts on the answers.

    join ──▶ heartbeat, every heartbeat_s ──▶ … ──▶ SIGTERM: drain, with heartbeats ──▶ finish executions ──▶ leave

A heartbeat names the live attempts. Its answer lists the attempts that the log holds for this worker. Two differences
lead to an action if they last:

- The log holds an attempt that is not live here, and its order has not arrived OFFER_S after the first answer that
  lists it. Then the caller's process is slow or dead. The worker promises never to begin the attempt, and the agent
  returns it.
- An execution runs here, and no answer of the last UNKNOWN_S lists it. Then its attempt was returned or ended by
  another process. The agent aborts it and does not report its end. One answer is not enough: it may be older than the
  attempt.

An answer is outdated, and ignored, if an earlier answer was from a higher position of the log.

If no heartbeat was answered for lease_s - margin_s, the agent aborts all executions, because the gate may soon give the
work to another worker. A separate task does this, because a heartbeat may hang. The ends are reported when the gate
answers again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Set
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from dispatcher.model.commands import Attempts, Leave, Report
from dispatcher.model.errors import HeadgateError, StoreUnavailable
from dispatcher.policies.slot_shares import ShardShare
from dispatcher.ports import Clock
from gpu_worker.policies.capacity import MeasuredCapacity
from gpu_worker.service.executions.execution import Abort
from gpu_worker.service.executions.executions import Executions
from gpu_worker.service.executions.outbox import Gate
from gpu_worker.service.executions.shard_view import ShardExecutions
from gpu_worker.service.swapper import Swapper

logger = logging.getLogger("headgate.agent")

OFFER_S = 2.0
UNKNOWN_S = 2.0
MOVE_PAUSE_S = 0.05
"""Heartbeats that move slots come at most so often."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """All times are in seconds."""

    heartbeat_s: float = 1.0
    lost_pause_s: float = 0.05
    """The time from the loss of the connection to the leader to the next heartbeat."""
    answer_s: float = 5.0
    """The longest time to the answer of a heartbeat."""
    lease_s: float = 10.0
    """For this time after a heartbeat the gate keeps the attempts assigned to this worker."""
    margin_s: float = 3.0
    """All executions are aborted this long before the end of the lease."""
    watch_s: float = 0.25
    """The time between two checks for the end of the lease and for overdue attempts."""
    join_s: float = 60.0
    """The first heartbeat is repeated for this time. Then the start fails."""
    join_pause_s: float = 0.5
    join_pause_max_s: float = 8.0
    drain_s: float = 25.0
    """The longest time of a drain until all executions have finished and their reports are in the log."""
    abort_s: float = 5.0
    """After the drain's end, the same bound for the aborted executions; also the bound for signing off."""


@dataclass(eq=False)
class HeldAttempts:
    """Compares the attempts that the log holds for a worker with those that run there. Pure; times are monotonic
    seconds."""

    _position: int = -1
    _old: Set[str] | None = None
    """The attempts of the first answer. An earlier process of this worker may have begun them."""
    _absent_since_s: dict[str, float] = field(default_factory=dict)
    """The attempts that the log holds and that are not live here, each with the time of the first such answer."""
    _unknown_since_s: dict[str, float] = field(default_factory=dict)
    """The executions that run here and that the log does not hold, each with the time of the first such answer."""

    def note(self, answer: Attempts, running: Set[str], live: Set[str], now_s: float) -> bool:
        """Record an answer. Return False if it is outdated.

        `running`: the executions that ran when the heartbeat was sent. `live`: the attempts that are live now.
        """
        if answer.position < self._position:
            return False
        self._position = answer.position
        held = set(answer.held)
        if self._old is None:
            self._old = held
        self._absent_since_s = _since(held - live, self._absent_since_s, now_s)
        self._unknown_since_s = _since(running - held, self._unknown_since_s, now_s)
        return True

    def overdue(self, now_s: float) -> list[str]:
        """Return the held attempts without an order in time. The caller must return each of them to the gate."""
        due = [name for name, since_s in self._absent_since_s.items() if now_s - since_s >= OFFER_S]
        for name in due:
            del self._absent_since_s[name]
        return due

    def is_old(self, name: str) -> bool:
        return self._old is not None and name in self._old

    def unknown(self, now_s: float) -> list[str]:
        """Return the executions that the log has not held for UNKNOWN_S, by the answer recorded at `now_s`."""
        return [name for name, since_s in self._unknown_since_s.items() if now_s - since_s >= UNKNOWN_S]


@dataclass(eq=False)
class Agent:
    """Sends the heartbeats of one worker.

    `identity` has the fields that are the same in all heartbeats. `random` gives the jitter that spreads a fleet's
    heartbeats over time.
    """

    identity: Report
    gate: Gate
    executions: Executions | ShardExecutions
    clock: Clock
    random: Random
    settings: AgentSettings = field(default_factory=AgentSettings)
    capacity: MeasuredCapacity = field(default_factory=MeasuredCapacity)
    swapper: Swapper | None = None
    """None for a worker of one model."""
    engine_changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the engine stops or begins to serve."""
    connection_lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the connection to the gate's leader ends."""
    report_asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the gate's leader asks for a report: it has an order."""
    last_moment: asyncio.Event = field(default_factory=asyncio.Event)
    """Set shortly before this machine ends: a drain ends then too."""
    share: ShardShare | None = None
    """This shard's part of the slots; None: all slots, because the pool has one shard."""
    on_need: Callable[[], None] = lambda: None
    """Called when an answer has said what the shard needs."""
    slots_move: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a heartbeat would move a slot from this shard to another one, or to it."""
    _held: HeldAttempts = field(default_factory=HeldAttempts)
    _draining: bool = False
    _last_heartbeat: asyncio.Future[bool] | None = None
    """Tells the gate that this worker drains."""
    _left: bool = False
    _unanswered: bool = False
    """True if the last heartbeat was not answered."""
    _answered_s: float = 0.0
    """The time at which the last answered heartbeat was sent, in monotonic seconds."""
    _answered_at: float = 0.0
    """The same time by the wall clock, in Unix seconds."""
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.executions.health.report = self.heartbeat

    async def join(self) -> None:
        """Send the first heartbeat until the gate answers it. Raises StoreUnavailable after join_s."""
        until_s = self.clock.monotonic() + self.settings.join_s
        pause = self.settings.join_pause_s
        while not await self.heartbeat():
            wait = self._add_jitter(pause)
            if self.clock.monotonic() + wait > until_s:
                raise StoreUnavailable(f"the gate did not answer for {self.settings.join_s:g} s")
            await self.clock.sleep(wait)
            pause = min(2 * pause, self.settings.join_pause_max_s)

    async def serve(self, until: Awaitable[object]) -> None:
        """Send heartbeats until `until` is done. Then drain, still with heartbeats."""
        await serve_until(until, self)

    async def run(self) -> None:
        """Send heartbeats, and watch the lease and the offers, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._heartbeat_loop())
            tasks.create_task(self._report_at_once(self.engine_changed))
            tasks.create_task(self._report_at_once(self.report_asked))
            tasks.create_task(self._report_moves())
            tasks.create_task(self._report_after_losses())
            tasks.create_task(self._watch())

    async def heartbeat(self) -> bool:
        """Send one heartbeat. Return False, and log the reason, if it is not answered."""
        try:
            async with self._sending, asyncio.timeout(self.settings.answer_s):
                return self._left or await self._heartbeat()
        except (HeadgateError, TimeoutError) as error:
            logger.warning("heartbeat not answered: %s", type(error).__name__)
        except Exception as error:  # a bug must not end the heartbeats unnoticed
            logger.error("heartbeat failed: %s", type(error).__name__)
        self._unanswered = True
        return False

    async def drain(self) -> None:
        """Accept no more work, finish the executions, abort those that do not finish in time, and sign off."""
        await self.finish()
        await self.executions.health.stop()
        await self.leave()

    async def finish(self) -> None:
        """Accept no more work, finish the executions, and abort those that do not finish in time."""
        self._draining = True
        self.executions.accepting = False
        if self.swapper is not None:
            await self._within(self.settings.drain_s, self.swapper.stop(), self.last_moment)
        self._last_heartbeat = asyncio.ensure_future(self.heartbeat())
        if not await self._within(self.settings.drain_s, self.executions.idle(), self.last_moment):
            await self.executions.abort_all(Abort.DRAINED)
            if not await self._within(self.settings.abort_s, self.executions.idle()):
                logger.error("not finished or not reported: %s", ", ".join(sorted(self.executions.live())))

    async def leave(self) -> None:
        """Sign off at the gate, in a bounded time."""
        if not await self._within(self.settings.abort_s, self._leave()):
            logger.warning("could not leave in time: the lease ends by itself")
        if self._last_heartbeat is not None:
            self._last_heartbeat.cancel()  # not before: the gate could decide it after the Leave

    async def _heartbeat_loop(self) -> None:
        while True:
            await self.clock.sleep(self._add_jitter(self.settings.heartbeat_s))
            await self.heartbeat()

    async def _report_at_once(self, event: asyncio.Event) -> None:
        """Send a heartbeat at once when the engine stops or begins to serve, or the gate asks for it.

        Until the gate knows that the engine does not serve, it dispatches a returned call to this worker again, until
        the call has no attempt left. And while a model waits for a worker that does not know its order, nothing is
        served.
        """
        while True:
            await event.wait()
            event.clear()
            await self.heartbeat()

    async def _report_moves(self) -> None:
        while True:
            await self.slots_move.wait()
            self.slots_move.clear()
            await self.heartbeat()
            await self.clock.sleep(MOVE_PAUSE_S)

    async def _report_after_losses(self) -> None:
        """Send a heartbeat soon after a loss of the connection. Until then the gate gives this worker no new work."""
        while True:
            await self.connection_lost.wait()
            await self.clock.sleep(self._add_jitter(self.settings.lost_pause_s))
            self.connection_lost.clear()
            await self.heartbeat()

    async def _heartbeat(self) -> bool:
        sent_s, sent_at, running = self.clock.monotonic(), self.clock.now(), self.executions.running()
        was_swapping = self.swapper is not None and self.swapper.is_swapping
        answer = await self.gate.do(self._as_now(sent_s))
        if not isinstance(answer, Attempts):
            logger.warning("heartbeat answered by %s", type(answer).__name__)
            return False
        now_s = self.clock.monotonic()
        if not self._held.note(answer, running, self.executions.live(), now_s):
            logger.warning("heartbeat answered from an old state")
            return False
        self._answered_s, self._answered_at = sent_s, sent_at
        if self.share is not None:
            self.share.note(answer.need, len(answer.held), now_s)
            self.on_need()
        if self._unanswered:
            self._unanswered = False
            self.executions.outbox.gate_is_back()
        if self.swapper is not None and not was_swapping:  # else the answer is to a report of the former model
            self.swapper.order(answer.load)
        self.executions.accepting = not (self._draining or (self.swapper is not None and self.swapper.is_swapping))
        for name in self._held.unknown(now_s):
            await self.executions.abort(name, Abort.LEASE_LOST)
        return True

    async def _watch(self) -> None:
        """Return overdue attempts to the gate. Abort everything before the lease ends."""
        while True:
            now_s = self.clock.monotonic()
            for name in self._held.overdue(now_s):
                self.executions.fence(name, is_old=self._held.is_old(name))
            if self._lease_ends(now_s):
                await self.cut_off()
            await self.clock.sleep(self.settings.watch_s)

    def _lease_ends(self, now_s: float) -> bool:
        """Return whether the gate may soon give the work to another worker.

        While a machine is suspended, its monotonic clock may stand still. So the wall clock counts too, but only if no
        heartbeat was answered for two intervals, because the wall clock may have been set.
        """
        left_s = self.settings.lease_s - self.settings.margin_s
        silent_s = now_s - self._answered_s
        by_wall_clock = self.clock.now() - self._answered_at >= left_s and silent_s >= 2 * self.settings.heartbeat_s
        return silent_s >= left_s or by_wall_clock

    async def cut_off(self) -> None:
        """Accept no order, and abort all executions, because the gate may soon give the work to another worker."""
        self.executions.accepting = False
        await self.executions.abort_all(Abort.CUT_OFF)
        if self.share is not None:
            self.share.lose()

    async def _leave(self) -> None:
        """Sign off, unless an attempt is still live: the gate would dispatch its call again.

        No heartbeat is sent after this, because it would register the worker again.
        """
        async with self._sending:
            self._left = True
            if self.executions.live():
                return
            try:
                await self.gate.do(Leave(self.identity.worker))
            except HeadgateError as error:
                logger.warning("could not leave: %s", type(error).__name__)

    async def _within(
        self, seconds: float, work: Coroutine[Any, Any, None], unless: asyncio.Event | None = None
    ) -> bool:
        """Run `work` and return True. After `seconds` of this agent's clock, or when `unless` is set, cancel `work` and
        return False."""
        task = asyncio.ensure_future(work)
        limits: set[asyncio.Future[Any]] = {asyncio.ensure_future(self.clock.sleep(seconds))}
        if unless is not None:
            limits.add(asyncio.ensure_future(unless.wait()))
        await asyncio.wait({task, *limits}, return_when=asyncio.FIRST_COMPLETED)
        for limit in limits:
            limit.cancel()
        if task.done():
            task.result()
            return True
        task.cancel()
        return False

    def _as_now(self, now_s: float) -> Report:
        stats = self.executions.engine.stats()
        slots_open, live = self.executions.health.slots_open(), self.executions.live()
        served = sum(tenant.service for tenant in stats.tenants.values())
        # Where the batch has as many sequences as there are slots, nothing ever waits in the engine.
        saturated = stats.waiting > 0 or len(live) >= slots_open > 0
        slots = slots_open if self.share is None else self.share.slots(slots_open)
        report = self.identity._replace(
            slots=slots,
            draining=self._draining or not self.executions.health.serves(),
            live=tuple(sorted(live)),
            kv_use=stats.kv_use,
            queue_length=stats.waiting,
        )
        if self.swapper is not None:
            return self.swapper.described(report, now_s, served, saturated=saturated)
        capacity_per_s = self.capacity.observe(now_s, served, saturated=saturated)
        return report._replace(service_per_s=capacity_per_s * (slots / slots_open if slots_open else 1.0))

    def _add_jitter(self, seconds: float) -> float:
        return seconds * (0.8 + 0.4 * self.random.random())


class Serving(Protocol):
    """What `serve_until` needs of an agent, or of the agents of several shards."""

    async def run(self) -> None: ...
    async def cut_off(self) -> None: ...
    async def drain(self) -> None: ...


async def serve_until(until: Awaitable[object], agent: Serving) -> None:
    """Send heartbeats until `until` is done. Then drain, still with heartbeats."""
    stop, heartbeats = asyncio.ensure_future(until), asyncio.ensure_future(agent.run())
    await asyncio.wait({stop, heartbeats}, return_when=asyncio.FIRST_COMPLETED)
    if heartbeats.done():
        logger.error("the heartbeats ended: %s", type(heartbeats.exception()).__name__)
        await agent.cut_off()
    await agent.drain()
    stop.cancel()
    heartbeats.cancel()
    await asyncio.wait({stop, heartbeats})


def _since(names: Set[str], known: dict[str, float], now_s: float) -> dict[str, float]:
    return {name: known.get(name, now_s) for name in sorted(names)}
