"""What holds for every announced waiting time, whatever a shard has seen."""

from __future__ import annotations

from math import isfinite

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.policies.orders.registry import ORDERS
from dispatcher.shard.settings import ShardSettings, TierFloors
from dispatcher.shard.waits.estimate import expected_wait
from tests.support.world.lone_shard import MODEL, LoneShard, report

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 100_000),
        st.floats(0.0, 100.0),
        st.booleans(),
    ),
    min_size=1,
    max_size=120,
)
"""A tenant, the tokens of the next end, the seconds before it, and whether a call ends at all."""
SHARES = {"a": (1.0, 0.0, "premium"), "b": (0.01, 5.0, "standard"), "c": (100.0, 0.0, "background")}


@given(STEPS, st.sampled_from(sorted(ORDERS)), st.booleans(), st.integers(1, 4))
def test_waits_are_finite_grow_with_the_position_and_p90_is_above_p50(
    steps: list[tuple[str, int, float, bool]], order: str, tiers: bool, slots: int
) -> None:
    shard = LoneShard(ShardSettings(order=order, tiers=TierFloors({}) if tiers else None), report(slots=slots))
    running = [shard.call("a") for _ in range(25)]
    for _ in range(22):
        shard.now += 1.0
        shard.end(running.pop(0), 10)
    for tenant, tokens, pause_s, ends in steps:
        weight, rate_per_s, tier = SHARES[tenant]
        shard.call(tenant, weight=weight, rate_per_s=rate_per_s, burst=rate_per_s, tier=tier)
        shard.now += pause_s
        held = [call.id for call in shard.shard.state.calls.values() if call.worker]
        if ends and held:
            shard.finish(held[0], tokens, tokens // 7)
    state = shard.shard.state
    announced = 0
    for each in state.tenants.values():
        before = 0.0, 0.0
        for position in (1, 2, 3, 10, 1_000, 1_000_000):
            wait = expected_wait(state, each, MODEL, position)
            announced += 1
            assert isfinite(wait.p50_s)
            assert isfinite(wait.p90_s)
            assert 0.0 <= wait.p50_s <= wait.p90_s
            assert before[0] <= wait.p50_s * (1 + 1e-9)
            assert before[1] <= wait.p90_s * (1 + 1e-9)
            before = wait.p50_s, wait.p90_s
    assert announced == 6 * len(state.tenants)
