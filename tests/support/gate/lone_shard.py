"""A shard that counts each decision as written at once, and short commands for it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from dispatcher.model.call import CallTerms, TenantConfig
from dispatcher.model.commands import Accept, Command, End, Offer, Outcome, Report, Return, Status, call_id
from dispatcher.model.facts import Dispatched, Entry, Fact
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard

T0 = 1_000_000.0
MODEL = "m"


def report(
    worker: str = "w", slots: int = 1, *, model: str = MODEL, kv_use: float = 0.0, capacity_per_s: float = 10.0
) -> Report:
    return Report(worker, f"http://{worker}", model, slots, 0, 1.0, capacity_per_s, False, kv_use, 0, ())


def with_fields(command: Accept, **fields: Any) -> Accept:
    """Return the command with other fields: its own, of its terms, or of its tenant's configuration."""
    own, terms, config = (
        {name: fields.pop(name) for name in kind._fields if name in fields}
        for kind in (Accept, CallTerms, TenantConfig)
    )
    assert not fields, fields
    return command._replace(**own, terms=command.terms._replace(**terms), config=command.config._replace(**config))


class LoneShard:
    """`facts`: of the last command. `dispatched`: all dispatches so far."""

    def __init__(self, settings: ShardSettings | None = None, *workers: Report) -> None:
        self.shard = Shard(settings)
        self.now = T0
        self.facts: tuple[Fact, ...] = ()
        self.dispatched: list[Dispatched] = []
        self._sequences: Iterator[int] = count(1)
        for worker in workers or (report(),):
            self.do(worker)

    def do(self, command: Command, now: float | None = None) -> Outcome:
        self.now = self.now if now is None else now
        (outcome,), self.facts = self.shard.decide([command], self.now)
        position, at = self.shard.position, self.shard.at
        self.shard.confirm(Entry(position, at, "test", "", 0, self.facts) if self.facts else None)
        self.dispatched += [fact for fact in self.facts if isinstance(fact, Dispatched)]
        return outcome

    def accept(
        self,
        tenant: str = "a",
        *,
        process: str = "p",
        model: str = MODEL,
        cost: float = 1.0,
        wait_s: float = 1e6,
        durable: bool = False,
        app: str = "",
        interaction: str = "",
        version: int = 1,
        weight: float = 1.0,
        rate_per_s: float = 0.0,
        burst: float = 0.0,
        tier: str = "standard",
        waiting_max: int = 1_000_000,
        slo_class: str = "",
        due_at: float = 0.0,
        deferred: bool = False,
        input_tokens: int = 0,
    ) -> tuple[str, Outcome]:
        """Send a call. Return its id and the outcome."""
        name = call_id(process, next(self._sequences))
        deadline_at, due = self.now + wait_s, (slo_class, due_at, deferred)
        terms = CallTerms(tenant, model, cost, deadline_at, durable, app, interaction, *due, input_tokens)
        config = TenantConfig(version, weight, rate_per_s, burst, tier, waiting_max)
        return name, self.do(Accept(name, 0, process, terms, config))

    def call(self, tenant: str = "a", **fields: object) -> str:
        """Send a call that must not be refused. Return its id."""
        name, outcome = self.accept(tenant, **fields)  # type: ignore[arg-type]
        assert not hasattr(outcome, "code"), outcome
        return name

    def end(self, name: str, tokens: int = 1) -> list[str]:
        """End a running call with so many input tokens. Return the calls that this dispatched."""
        self.do(End(name, self.shard.state.calls[name].attempt, "done", tokens, 0))
        return [fact.id for fact in self.facts if isinstance(fact, Dispatched)]

    def give_back(self, name: str, reason: str) -> Outcome:
        call = self.shard.state.calls[name]
        return self.do(Return(name, call.attempt, reason, call.worker))

    def status(self, name: str) -> Outcome:
        return self.do(Status(name))

    def worker_of(self, name: str) -> str:
        """Return the worker that the call is offered to; "" if it waits or is over."""
        outcome = self.status(name)
        return outcome.worker if isinstance(outcome, Offer) else ""

    def drain(self, name: str) -> list[str]:
        """End the call, then each that this dispatches. Return them in the order of dispatch."""
        order = self.end(name)
        for dispatched in order:
            order += self.end(dispatched)
        return order
