"""`TenantCounters.may_exceed` skips the reading of all counters: it must never miss one that is above the level."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.policies.fairness.accounting import TenantCounters

TENANTS = ("a", "b", "c")
ACTIONS = st.tuples(
    st.sampled_from(("add", "refund", "lift", "run", "stop", "steps", "ask")),
    st.sampled_from(TENANTS),
    st.integers(0, 40),
)


@given(st.lists(ACTIONS, max_size=60), st.integers(0, 200))
def test_no_running_counter_above_the_level_is_missed(actions: list[tuple[str, str, int]], level: int) -> None:
    counters = TenantCounters()
    running: list[tuple[str, float]] = []
    for action, tenant, amount in actions:
        match action:
            case "add" | "refund":
                counters.add(tenant, float(amount if action == "add" else -amount))
            case "lift":
                counters.lift(tenant, float(amount))
            case "run":
                running.append((tenant, 1.0 + amount))
                counters.run(*running[-1])
            case "stop" if running:
                counters.stop(*running.pop(amount % len(running)))
            case "steps":
                counters.step += amount % 5
        if action == "ask":
            highest = max((counters.value(name) for name, _ in running), default=float("-inf"))
            found = counters.may_exceed(float(level))
            assert found or highest <= level


def test_the_counters_are_read_again_only_when_one_may_have_reached_the_level() -> None:
    class Reads(TenantCounters):
        reads = 0

        def value(self, tenant: str) -> float:
            self.reads += 1
            return super().value(tenant)

    counters = Reads()
    for number in range(100):
        counters.run(f"t{number}", 2.0)
    assert not counters.may_exceed(1000.0)
    counters.reads = 0
    for _ in range(499):
        counters.step += 1
        assert not counters.may_exceed(1000.0)
    assert counters.reads == 0
    counters.step += 2
    assert counters.may_exceed(1000.0)


def test_the_counter_of_a_tenant_without_running_requests_stays() -> None:
    """Paces of fractions do not cancel exactly: 0.1 + 0.2 - 0.1 - 0.2 is not 0."""
    counters = TenantCounters()
    for per_step in (0.1, 0.2):
        counters.run("a", per_step)
    for per_step in (0.1, 0.2):
        counters.stop("a", per_step)
    counters.step = 10**15
    assert counters.value("a") == 0.0
    assert counters.steps_below("a", 1.0) == inf
