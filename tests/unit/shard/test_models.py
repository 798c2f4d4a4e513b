"""Tenants of one model do not wait for those of another: one model's queue may stand still for a long time."""

from __future__ import annotations

from dispatcher.policies.clocks import LEAD_MAX
from tests.support.world.lone_shard import LoneShard, report

CALL = 500.0


def two_models() -> LoneShard:
    """Make a shard with one slot for each model. The tenant "stuck" waits for the model that is full for ever."""
    shard = LoneShard(None, report("full", model="full"), report("w"))
    for _ in range(2):
        shard.call("stuck", model="full", cost=CALL)
    return shard


def served(shard: LoneShard, running: str, service: float, *, floods: dict[str, tuple[float, float]]) -> list[str]:
    """End calls of model "m" until `service` is spent. Return their tenants. `floods`: (weight, cost) by tenant."""
    tenants: list[str] = []
    while service > 0:
        for tenant, (weight, cost) in floods.items():
            shard.call(tenant, weight=weight, cost=cost)
        call = shard.shard.state.calls[running]
        tenants.append(call.tenant.name)
        service -= call.cost
        (running,) = shard.end(running, int(call.cost))
    return tenants


def test_shares_hold_beside_a_model_without_free_slots() -> None:
    floods = {"small": (4.0, CALL), "large": (1.0, 4 * CALL)}
    shard = two_models()
    tenants = served(shard, shard.call("first", cost=CALL), 20 * LEAD_MAX, floods=floods)[-1700:]
    assert 95 <= tenants.count("large") <= 105  # a fifth of the service, in calls of four times the cost
    assert 1595 <= tenants.count("small") <= 1605


def test_a_tenant_that_waited_long_for_another_model_has_a_bounded_lead() -> None:
    shard = two_models()
    running = shard.call("old", cost=CALL)
    served(shard, running, 5 * LEAD_MAX, floods={"old": (1.0, CALL)})
    (running,) = shard.shard.state.workers["w"].running
    tenants = served(shard, running, 3 * LEAD_MAX, floods={"old": (1.0, CALL), "stuck": (1.0, CALL)})
    assert tenants.count("stuck") * CALL <= 2.05 * LEAD_MAX
    assert tenants[-10:].count("old") == 5


def test_a_tenant_that_joins_a_slow_model_soon_gets_its_turn() -> None:
    shard = LoneShard(None, report("slow", model="slow"), report("w"))
    running = shard.call("fast", cost=CALL)
    slow = shard.call("old", model="slow", cost=CALL)
    for _ in range(50):
        shard.call("old", model="slow", cost=CALL)
    served(shard, running, 5 * LEAD_MAX, floods={"fast": (1.0, CALL)})
    new = shard.call("new", model="slow", cost=CALL)
    (running,) = shard.shard.state.workers["w"].running
    served(shard, running, 1.1 * LEAD_MAX, floods={"fast": (1.0, CALL)})
    (second,) = shard.end(slow, int(CALL))
    (third,) = shard.end(second, int(CALL))
    assert new in (second, third)
