"""Tenants that need a swap pay for it in the surplus: in their fair clocks, not in guarantees or usage."""

from __future__ import annotations

import pytest

from dispatcher.model.facts import ModelOrdered
from dispatcher.model.formats import OLDEST
from dispatcher.policies.orders.slack_index import Slack
from dispatcher.policies.planning.fleet import PATIENCE_S
from dispatcher.shard.alone import LoneGate
from dispatcher.shard.codec import decode_entry, encode_entry
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard
from dispatcher.shard.snapshot import dump, load
from dispatcher.shard.swapping import PAYERS_MAX
from tests.support.world.lone_shard import T0, LoneShard, swap_report

SWAP_S, PER_S = 3.0, 100.0
PRICE = SWAP_S * PER_S
SWAPS = {"a": SWAP_S, "b": SWAP_S}


class Fleet:
    """A gate before a worker that has model a."""

    def __init__(self, settings: ShardSettings | None = None, of_format: int | None = None) -> None:
        self.shard = LoneShard(settings, swap_report("w", "a", SWAPS))
        if of_format is not None:
            self.shard.shard.state.format = of_format

    def order_b(self) -> ModelOrdered:
        """Let patience pass, so that the worker is ordered to load b."""
        self.shard.do(swap_report("w", "a", SWAPS), T0 + PATIENCE_S)
        return next(fact for fact in self.shard.facts if isinstance(fact, ModelOrdered))

    def load_b(self) -> None:
        self.shard.do(swap_report("w", "b", SWAPS), T0 + PATIENCE_S + SWAP_S)

    def clocks(self, tenant: str) -> tuple[float, float]:
        tat, vft = self.shard.shard.state.tenants[tenant].clocks
        return tat, vft


def clocks_after(charge: float, *, rate_per_s: float = 0.0) -> tuple[float, float, float]:
    """Return the tenant's clocks after a call of one unit that needed a swap, and its service in usage."""
    fleet = Fleet(ShardSettings(swap_charge=charge))
    name = fleet.shard.call("x", model="b", rate_per_s=rate_per_s, burst=1.0, weight=2.0)
    fleet.order_b()
    fleet.load_b()
    fleet.shard.end(name)
    (row,) = fleet.shard.shard.usage_rows()
    return *fleet.clocks("x"), row.service


def test_tenants_that_wait_for_the_model_pay_equal_parts() -> None:
    fleet = Fleet()
    late = fleet.shard.call("x", model="b", due_at=T0 + 60)
    first = fleet.shard.call("y", model="b", due_at=T0 + 20)
    for _ in range(3):
        fleet.shard.call("y", model="b", due_at=T0 + 90)
    fleet.shard.call("other", model="a", due_at=T0 + 1)
    assert fleet.order_b() == ModelOrdered("w", "b", (first, late), PRICE / 2)


def test_deferred_calls_pay_only_among_themselves() -> None:
    fleet = Fleet(ShardSettings(slack=Slack()))
    fleet.shard.call("x", model="b", due_at=T0 + 5, deferred=True)
    name = fleet.shard.call("y", model="b", due_at=T0 + 60)
    assert fleet.order_b() == ModelOrdered("w", "b", (name,), PRICE)
    deferred = Fleet(ShardSettings(slack=Slack()))
    name = deferred.shard.call("x", model="b", due_at=T0 + 5, deferred=True)
    assert deferred.order_b() == ModelOrdered("w", "b", (name,), PRICE)


def test_many_tenants_pay_up_to_a_bound() -> None:
    fleet = Fleet()
    names = [fleet.shard.call(f"t{number}", model="b") for number in range(PAYERS_MAX + 1)]
    assert fleet.order_b() == ModelOrdered("w", "b", tuple(names[:-1]), PRICE / PAYERS_MAX)


@pytest.mark.parametrize("rate_per_s", [0.0, 50.0])
def test_a_swap_moves_the_fair_clock_and_neither_the_guarantee_nor_the_usage(rate_per_s: float) -> None:
    without, half, whole = (clocks_after(charge, rate_per_s=rate_per_s) for charge in (0.0, 0.5, 1.0))
    assert [each[1] - without[1] for each in (half, whole)] == [PRICE / 2 / 2.0, PRICE / 2.0]
    assert without[0] == half[0] == whole[0]
    assert without[2] == half[2] == whole[2] == 1.0


def test_tenants_of_other_models_pay_nothing() -> None:
    fleet = Fleet()
    names = [fleet.shard.call("y", model="a"), fleet.shard.call("x", model="b")]
    fleet.shard.end(names[0])
    before = fleet.clocks("y")
    fleet.order_b()
    fleet.load_b()
    fleet.shard.end(names[1])
    assert fleet.clocks("y") == before
    assert fleet.clocks("x")[1] >= PRICE


def test_a_call_that_leaves_before_its_slot_pays_nothing() -> None:
    fleet = Fleet()
    name = fleet.shard.call("x", model="b")
    fleet.shard.call("y", model="b")
    before = fleet.clocks("x")
    fleet.order_b()
    fleet.shard.cancel(name)
    assert fleet.clocks("x") == before


def test_a_log_of_the_older_format_names_no_call() -> None:
    fleet = Fleet(of_format=OLDEST)
    fleet.shard.call("x", model="b")
    assert fleet.order_b() == ModelOrdered("w", "b")


def test_a_worker_without_a_measured_rate_costs_nothing() -> None:
    unmeasured = swap_report("w", "a", SWAPS)
    models = tuple(each._replace(service_per_s=0.0) for each in unmeasured.models)
    shard = LoneShard(None, unmeasured._replace(service_per_s=0.0, models=models))
    shard.call("x", model="b")
    shard.do(unmeasured._replace(service_per_s=0.0, models=models), T0 + PATIENCE_S)
    assert [fact for fact in shard.facts if isinstance(fact, ModelOrdered)] == [ModelOrdered("w", "b")]


def test_a_process_with_another_price_folds_the_same_and_a_snapshot_keeps_the_debt() -> None:
    gate, report = LoneGate(ShardSettings()), swap_report("w", "a", SWAPS)
    decided = [
        gate.decide(report),
        gate.submit("x", 1.0, model="b", deadline_at=2 * T0),
        gate.decide(report, now=T0 + PATIENCE_S),
    ]
    other = Shard(ShardSettings(swap_charge=0.25))
    for each in decided:
        assert each.entry is not None
        other.fold(decode_entry(encode_entry(each.entry, checked=True)))
    assert dump(other) == dump(gate.shard)
    (call,) = load(dump(gate.shard), ShardSettings()).state.calls.values()
    assert call.swap_service == PRICE
