"""Gate and engine charge one price for cached input tokens, and the gate expects what the tenant's past shows."""

from __future__ import annotations

from random import Random

import pytest

from dispatcher.model.commands import Accept, End, Offer
from dispatcher.model.facts import Accepted
from dispatcher.policies.service import WEIGHTED_TOKENS
from dispatcher.shard.alone import Decided, LoneGate, report
from dispatcher.shard.settings import ShardSettings
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.registry import make_policy

NOW = 1_800_000_000.0
FRACTION = 0.25


class Pool:
    """A shard, and beside it the queue of an engine that gets the same requests one after the other."""

    def __init__(self, cached_fraction: float = FRACTION) -> None:
        self.gate = LoneGate(ShardSettings(cached_fraction=cached_fraction), report(slots=4), now=NOW)
        self.shard = self.gate.shard
        self.engine = make_policy("vtc")
        self.engine.cached_fraction = cached_fraction

    def write(self, command: Accept | End) -> Decided:
        return self.gate.decide(command, now=self.gate.now + 1.0)

    def call(self, tenant: str, read: int, generated: int) -> Decided:
        cost = WEIGHTED_TOKENS(read, generated)
        return self.write(self.gate.new_call(tenant, cost, deadline_at=self.gate.now + 900, input_tokens=read))

    def serve(self, tenant: str, read: int, cached: int, generated: int) -> float:
        """Serve a request. Return the cost that the gate expected."""
        decided = self.call(tenant, read, generated)
        offer = decided.outcome
        assert isinstance(offer, Offer)
        name, expected = offer.id, next(fact.terms.cost for fact in decided.facts if isinstance(fact, Accepted))
        self.write(End(name, offer.attempt, "done", read, generated, tenant, cached_tokens=cached))
        self.engine.enqueue(QueueRequest(name, tenant, read, generated))
        self.engine.admit(name)
        self.engine.on_cached(name, cached)
        self.engine.on_generated(name, generated)
        self.engine.finish(name)
        return expected

    def charged_by_gate(self) -> dict[str, float]:
        return {row.tenant: row.service for row in self.shard.usage_rows()}


@pytest.mark.parametrize("seed", range(5))
def test_gate_and_engine_charge_the_same_for_coding_agents(seed: int) -> None:
    """96 % of the input of such a load is cached."""
    pool, random = Pool(), Random(seed)
    for _ in range(60):
        read = random.randrange(1000, 60_000)
        pool.serve(random.choice("ab"), read, round(read * random.uniform(0.92, 1.0)), random.randrange(1, 800))
    by_engine = {tenant: received.service for tenant, received in pool.engine.received.items()}
    assert pool.charged_by_gate() == pytest.approx(by_engine)
    rows = pool.shard.usage_rows()
    assert all(0.9 * row.input_tokens < row.cached_tokens <= row.input_tokens for row in rows)


def test_the_gate_expects_what_was_cached_before() -> None:
    pool = Pool()
    assert pool.serve("a", 1000, 800, 100) == 1200.0  # nothing is known
    assert pool.serve("a", 1000, 800, 100) == 1200.0 - (1 - FRACTION) * 800
    assert pool.serve("b", 1000, 0, 100) == 1200.0
    pool.gate.now += 3600.0
    assert pool.serve("a", 1000, 0, 100) == 600.0  # from the hour before
    assert pool.serve("a", 1000, 0, 100) == 1200.0


@pytest.mark.parametrize("cached", [-5, 2000, float("nan")])
def test_a_count_that_cannot_be_true_is_clamped(cached: int) -> None:
    pool = Pool()
    pool.serve("a", 1000, 0, 100)
    offer = pool.call("a", 1000, 100).outcome
    assert isinstance(offer, Offer)
    pool.write(End(offer.id, offer.attempt, "done", 1000, 100, "a", cached_tokens=cached))
    (row,) = pool.shard.usage_rows()
    assert row.cached_tokens == (1000 if cached == 2000 else 0)
