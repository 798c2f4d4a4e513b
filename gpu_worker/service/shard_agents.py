"""The agents of a worker in a pool of several shards: one for each shard, with a lease of its own (agent.py).

The worker serves as soon as one shard has answered, and the others have had JOIN_OTHERS_S to answer too: a shard that
cannot be reached keeps it from nothing. It joins that shard when the shard answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from dispatcher.model.commands import Report
from dispatcher.model.shards import shard_of_call
from dispatcher.policies.slot_shares import ShardShare, SlotShares
from dispatcher.ports import Clock
from gpu_worker.service.agent import Agent, AgentSettings, serve_until
from gpu_worker.service.executions.executions import Executions
from gpu_worker.service.executions.shard_view import ShardExecutions

if TYPE_CHECKING:
    from dispatcher.service.link.link import Link

logger = logging.getLogger("headgate.agent")

JOIN_OTHERS_S = 3.0


def shard_agents(
    identity: Report,
    links: Sequence[Link],
    executions: Executions,
    clock: Clock,
    random: Random,
    engine_changed: asyncio.Event,
    settings: AgentSettings | None = None,
) -> ShardAgents:
    """Return the agents of a worker. `links`: one to each shard, in their order."""
    shares = SlotShares(identity.worker, len(links))
    agents = [
        Agent(
            identity, link, ShardExecutions(executions, shard), clock, random, settings or AgentSettings(),
            connection_lost=link.lost, share=ShardShare(shares, shard),
        )
        for shard, link in enumerate(links)
    ]  # fmt: skip
    return ShardAgents(agents, shares, engine_changed)


@dataclass(eq=False)
class ShardAgents:
    """`agents`: one for each shard, in their order. `engine_changed`, `last_moment`: as in Agent, of the worker.

    A slot that calls of another shard wait for moves at once, and not with the heartbeats of each second: when an
    answer says so, and when the execution in it has ended.
    """

    agents: Sequence[Agent]
    shares: SlotShares
    engine_changed: asyncio.Event = field(default_factory=asyncio.Event)
    last_moment: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.agents[0].executions.health.report = self.heartbeat
        self.agents[0].executions.outbox.on_delivered = self._on_ended
        for agent in self.agents:
            agent.last_moment = self.last_moment
            agent.on_need = self._on_need

    @property
    def identity(self) -> Report:
        return self.agents[0].identity

    async def heartbeat(self) -> None:
        """Send a heartbeat to each shard."""
        await asyncio.gather(*(agent.heartbeat() for agent in self.agents))

    async def join(self) -> None:
        """Send the first heartbeats. Raises StoreUnavailable if no shard answers within join_s."""
        clock = self.agents[0].clock
        joins = [asyncio.ensure_future(agent.join()) for agent in self.agents]
        try:
            await self._first_of(joins)
            others_late = asyncio.ensure_future(clock.sleep(JOIN_OTHERS_S))
            while not others_late.done() and not all(join.done() for join in joins):
                waits = {join for join in joins if not join.done()}
                await asyncio.wait({others_late, *waits}, return_when=asyncio.FIRST_COMPLETED)
            others_late.cancel()
        finally:
            for join in joins:
                join.cancel()
        for number, join in enumerate(joins):
            if not join.done() or join.cancelled() or join.exception() is not None:
                logger.warning("shard %d does not answer yet", number)

    async def _first_of(self, joins: Sequence[asyncio.Future[None]]) -> None:
        """Wait until one join has succeeded. Raises the error of the last one if all fail."""
        pending: set[asyncio.Future[None]] = set(joins)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if any(join.exception() is None for join in done):
                return
            if not pending:
                done.pop().result()

    async def serve(self, until: Awaitable[object]) -> None:
        """As Agent.serve: send heartbeats until `until` is done. Then drain, still with heartbeats."""
        await serve_until(until, self)

    async def cut_off(self) -> None:
        """Abort all executions: no shard renews its lease any more."""
        await asyncio.gather(*(agent.cut_off() for agent in self.agents))

    async def run(self) -> None:
        """Send heartbeats, and watch the leases and the offers, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pass_on_changes())
            for agent in self.agents:
                tasks.create_task(agent.run())

    async def drain(self) -> None:
        """Finish the executions of all shards, then sign off at each."""
        await asyncio.gather(*(agent.finish() for agent in self.agents))
        await self.agents[0].executions.health.stop()
        await asyncio.gather(*(agent.leave() for agent in self.agents))

    def _on_need(self) -> None:
        for shard in self.shares.urgent(self._slots_open()):
            self.agents[shard].slots_move.set()

    def _on_ended(self, name: str) -> None:
        """`name`: of an execution of which the log has the end."""
        shard = shard_of_call(name)
        if shard < len(self.agents) and self.shares.is_urgent_end(shard, self._slots_open()):
            self.agents[shard].slots_move.set()

    def _slots_open(self) -> int:
        return self.agents[0].executions.health.slots_open()

    async def _pass_on_changes(self) -> None:
        """Tell each agent when the engine stops or begins to serve."""
        while True:
            await self.engine_changed.wait()
            self.engine_changed.clear()
            for agent in self.agents:
                agent.engine_changed.set()
