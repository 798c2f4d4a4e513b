"""A pool whose log is written through a real replica, and the operator's page of a front that reads it."""

from __future__ import annotations

from dispatcher.model.call import CallTerms, TenantConfig
from dispatcher.model.commands import Accept, Command, End, Offer, Outcome, Report
from dispatcher.monitor.console import Console, OperatorAccess
from dispatcher.monitor.follower import LogFollower
from dispatcher.ports import Log
from dispatcher.service.gate.replica import Replica
from dispatcher.shard.settings import ShardSettings
from functions.http_api.app import make_app
from tests.support.asgi import Caller
from tests.support.world.memory_gate import POOL, Gate

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

    async def accept(
        self, tenant: str, *, tier: str = "standard", rate_per_s: float = 0.0, model: str = "m"
    ) -> Outcome:
        self._numbers += 1
        share = (1, 1.0, rate_per_s, 100.0, tier, 10)
        deadline_at = self.gate.clock.now() + 600
        call = f"{WRITER}-{self._numbers}"
        return await self.do(
            Accept(
                call, 0, WRITER, CallTerms(tenant, model, 20.0, deadline_at, False, "chat", ""), TenantConfig(*share)
            )
        )

    async def served(self, tenant: str, *, rate_per_s: float = 0.0) -> None:
        """Let a call of 10 input and 4 output tokens begin and end."""
        offer = await self.accept(tenant, rate_per_s=rate_per_s)
        assert isinstance(offer, Offer)
        await self.do(End(offer.id, offer.attempt, "done", 10, 4, tenant, "", 0.25))
