"""The gate charges the load of an adapter to the tenant of the call that an engine loaded it for, and to no other."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.model.commands import End, Offer
from dispatcher.model.facts import Entry
from dispatcher.policies.service import WEIGHTED_TOKENS
from dispatcher.shard.alone import EPOCH, LoneGate, report
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard
from dispatcher.shard.snapshot import dump

READ, GENERATED, LOAD = 200, 100, 512
COST = WEIGHTED_TOKENS(READ, GENERATED)
SLOTS, OPEN = 4, 8


class Pool:
    """A gate at which each tenant always has OPEN calls. `loads`: whether an engine loads an adapter for a call."""

    def __init__(self, tenants: str, loads: Callable[[str], bool], load_tokens: int = LOAD) -> None:
        self.gate = LoneGate(ShardSettings(adapter_load_tokens=load_tokens))
        self.loads = loads
        self.entries: list[Entry] = []
        self.ended = dict.fromkeys(tenants, 0)
        self._keep(self.gate.decide(report(slots=SLOTS)).entry)
        for tenant in tenants * OPEN:
            self.submit(tenant)

    def submit(self, tenant: str) -> None:
        self._keep(self.gate.submit(tenant, COST, self.gate.now + 0.01, deadline_at=2 * EPOCH).entry)

    def serve(self, calls: int) -> None:
        for _ in range(calls):
            (worker,) = self.gate.shard.state.workers.values()
            call = min(worker.running.values(), key=lambda each: each.dispatched_at)
            tenant = call.tenant.name
            end = self.gate.finish(call.id, READ, GENERATED, self.gate.now + 0.01, adapter_loaded=self.loads(tenant))
            self._keep(end.entry)
            self.ended[tenant] += 1
            self.submit(tenant)

    def service(self) -> dict[str, float]:
        return {row.tenant: row.service for row in self.gate.shard.usage_rows()}

    def _keep(self, entry: Entry | None) -> None:
        if entry is not None:
            self.entries.append(entry)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), often=st.floats(0.3, 1.0), load_tokens=st.integers(100, 1000))
def test_a_tenant_that_cycles_through_adapters_pays_and_the_shares_of_others_stay(
    seed: int, often: float, load_tokens: int
) -> None:
    chance = Random(seed)
    pool = Pool("abc", lambda tenant: tenant == "a" and chance.random() < often, load_tokens)
    pool.serve(600)
    service = pool.service()
    apart = (SLOTS + OPEN) * (COST + load_tokens)
    assert max(service.values()) - min(service.values()) < apart, "each has its share of the service"
    assert service["a"] > pool.ended["a"] * COST + 0.5 * often * pool.ended["a"] * load_tokens
    assert service["b"] == pool.ended["b"] * COST, "no other tenant pays"
    assert abs(pool.ended["b"] - pool.ended["c"]) <= 2 * SLOTS
    wanted = pool.ended["b"] * COST / (COST + often * load_tokens)
    assert pool.ended["a"] == pytest.approx(wanted, rel=0.2), "it gets fewer calls by what its loads cost"


def test_without_a_price_a_load_changes_nothing() -> None:
    pools = [Pool("ab", lambda tenant, loads=loads: loads and tenant == "a", 0) for loads in (False, True)]  # type: ignore[misc]
    for pool in pools:
        pool.serve(100)
    assert pools[0].ended == pools[1].ended
    assert pools[0].service() == pools[1].service()


def test_a_process_with_another_price_folds_the_same() -> None:
    """The service of an end is in the log: to fold it, no price is needed."""
    pool = Pool("ab", lambda tenant: tenant == "a")
    pool.serve(40)
    other = Shard(ShardSettings(adapter_load_tokens=7))
    for entry in pool.entries:
        other.fold(entry)
    assert dump(other) == dump(pool.gate.shard)


def test_an_end_that_was_kept_in_the_store_is_charged_for_its_load_too() -> None:
    gate = LoneGate(ShardSettings(), report(slots=1))
    running = gate.submit("a", COST).outcome
    assert isinstance(running, Offer)
    waiting = gate.next_name()
    gate.submit("b", COST)
    gate.decide(End(waiting, 1, "done", READ, GENERATED, answer="{}", kept=True, adapter_loaded=True))
    (row,) = gate.shard.usage_rows()
    assert (row.tenant, row.service) == ("b", COST + LOAD)
