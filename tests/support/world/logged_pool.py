"""A pool whose log is written through a real replica, and the operator's page of a front that reads it."""

from __future__ import annotations

from typing import Any

from dispatcher.model.commands import Command, End, Offer, Outcome, Report
from dispatcher.monitor.console import Console, OperatorAccess
from dispatcher.monitor.follower import LogFollower
from dispatcher.ports import Log
from dispatcher.service.gate.replica import Replica
from dispatcher.shard.settings import ShardSettings
from functions.http_api.app import make_app
from tests.support.asgi import Caller
from tests.support.world.memory_gate import POOL, Gate
from tests.support.world.processes import accept

TOKEN = "operator-token-of-the-tests-0123456789"
WRITER = "writer"


class LoggedPool:
    """`log`: the log that the page reads, for a test that breaks it."""

    def __init__(self, gate: Gate, log: Log | None = None) -> None:
        self.gate = gate
        self._replica = Replica(gate.store.log(POOL), ShardSettings(), gate.clock, WRITER)
        self._numbers = 0
        self.console = Console(
            LogFollower(log or gate.store.log(POOL), ShardSettings(), gate.clock, POOL),
            gate.store,
            gate.context.directory.tenant_of_identity,
            gate.clock,
        )

    def caller(self, token: str | None = TOKEN) -> Caller:
        app = make_app()
        app.state.context = self.gate.context
        app.state.operator = OperatorAccess(TOKEN.encode(), {POOL: self.console})
        return Caller(app, token)

    async def page(self, query: str = "") -> str:
        reply = await self.caller().start("GET", "/operator", query=query).finished()
        return reply.body.decode()

    async def do(self, command: Command) -> Outcome:
        return (await self._replica.commit([command])).outcomes[0]

    async def worker(self, name: str = "w-1", model: str = "m", slots: int = 1) -> None:
        await self.do(Report(name, f"http://{name}", model, slots, 4096, 4.0, 90.0, False, 0.1, 0, ()))

    async def accept(self, tenant: str, **fields: Any) -> Outcome:
        """Send a call. `fields`: of its terms, or of its tenant's configuration."""
        self._numbers += 1
        usual = {"cost": 20.0, "app": "chat", "burst": 100.0, "waiting_max": 10}
        call, now = f"{WRITER}-{self._numbers}", self.gate.clock.now()
        return await self.do(accept(call, WRITER, now, tenant, **{**usual, **fields}))

    async def served(self, tenant: str, *, rate_per_s: float = 0.0) -> None:
        """Let a call of 10 input and 4 output tokens begin and end."""
        offer = await self.accept(tenant, rate_per_s=rate_per_s)
        assert isinstance(offer, Offer)
        await self.do(End(offer.id, offer.attempt, "done", 10, 4, tenant, "", 0.25))
