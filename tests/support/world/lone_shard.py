"""A gate alone (dispatcher/shard/alone.py) with short commands, and workers of several models that obey it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.model.commands import Attempts, Command, Offer, Outcome, Refused, Report, Return, Status
from dispatcher.model.facts import Dispatched, Fact
from dispatcher.model.fleet import LoadableModel
from dispatcher.shard.alone import EPOCH, PROCESS, Decided, LoneGate
from dispatcher.shard.alone import MODEL as MODEL
from dispatcher.shard.alone import report as well
from dispatcher.shard.settings import ShardSettings

T0 = EPOCH
WAIT_S = 1e6


def report(worker: str = "w", slots: int = 1, *, capacity_per_s: float = 10.0, **fields: Any) -> Report:
    return well(worker, slots, capacity_per_s=capacity_per_s, **fields)


class LoneShard(LoneGate):
    """`facts`: of the last command. `dispatched`: all dispatches so far."""

    def __init__(self, settings: ShardSettings | None = None, *workers: Report) -> None:
        self.facts: tuple[Fact, ...] = ()
        self.dispatched: list[Dispatched] = []
        super().__init__(settings, *(workers or (report(),)))

    def decide(self, *commands: Command, now: float | None = None) -> Decided:
        decided = super().decide(*commands, now=now)
        self.facts = decided.facts
        self.dispatched += decided.dispatched
        return decided

    def accept(
        self, tenant: str = "a", *, process: str = PROCESS, cost: float = 1.0, wait_s: float = WAIT_S, **fields: Any
    ) -> tuple[str, Outcome]:
        """Send a call that its process may repeat for ever. Return its id and the outcome."""
        usual: dict[str, Any] = {"process": process, "floor": 0, "version": 1, "deadline_at": self.now + wait_s}
        call = self.new_call(tenant, cost, **{**usual, **fields})
        return call.id, self.do(call)

    def call(self, tenant: str = "a", **fields: Any) -> str:
        """Send a call that must not be refused. Return its id."""
        name, outcome = self.accept(tenant, **fields)
        assert not isinstance(outcome, Refused), outcome
        return name

    def refused(self, tenant: str = "a", **fields: Any) -> Refused:
        """Send a call that must be refused. Return the refusal."""
        outcome = self.accept(tenant, **fields)[1]
        assert isinstance(outcome, Refused), outcome
        return outcome

    def end(self, name: str, tokens: int = 1) -> list[str]:
        """End a running call with so many input tokens. Return the calls that this dispatched."""
        return [fact.id for fact in self.finish(name, tokens, 0).dispatched]

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


HEARTBEAT_S = 1.0


def swap_report(
    worker: str, model: str, swap_s: Mapping[str, float], *, slots: int = 1, draining: bool = False
) -> Report:
    """Return the heartbeat of a worker that has `model`. `swap_s`: of each model that it can load."""
    models = tuple(
        LoadableModel(name, 0.0 if name == model else seconds, 4096, 4.0, 100.0)
        for name, seconds in sorted(swap_s.items())
    )
    return Report(worker, f"http://{worker}", model, slots, 4096, 4.0, 100.0, draining, 0.0, 0, (), (), models)


@dataclass
class SwappingWorker:
    """`drain_s`: how long its running calls take to end before a swap. `obeys`: whether it carries out orders."""

    name: str
    model: str
    swap_s: Mapping[str, float]
    drain_s: float = 0.0
    slots: int = 1
    obeys: bool = True
    loading: str = ""
    ready_at: float = 0.0
    swapping_s: float = 0.0
    """The seconds that all its swaps took."""

    def heartbeat(self, shard: LoneShard, now: float) -> None:
        if self.loading and now >= self.ready_at:
            self.model, self.loading = self.loading, ""
        report = swap_report(self.name, self.model, self.swap_s, slots=self.slots, draining=bool(self.loading))
        answer = shard.do(report, now)
        assert isinstance(answer, Attempts)
        if answer.load and self.obeys and not self.loading:
            self.loading = answer.load
            self.swapping_s += self.swap_s[answer.load]
            self.ready_at = now + self.drain_s + self.swap_s[answer.load]


def heartbeats(shard: LoneShard, workers: Sequence[SwappingWorker], now: float) -> None:
    for worker in workers:
        worker.heartbeat(shard, now)
