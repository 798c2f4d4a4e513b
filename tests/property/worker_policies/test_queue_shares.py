"""The shares of tenants against max-min fairness, for random demands and weights."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.policies.fairness.interface import QueuePolicy
from gpu_worker.policies.fairness.registry import make_policy
from tests.support.queue.model import BatchModel, Job
from tests.support.shares import FavouriteFirst, NearlyFair, check_shares, max_min_shares

POOL, INPUT, OUTPUT = 120, 8, 4
SERVICE = INPUT + 2 * OUTPUT
CAPACITY = POOL // (INPUT + OUTPUT) * SERVICE / OUTPUT
"""Service per step: ten requests at once, each for four steps."""

STEPS = 1_200
MARGIN = 0.06

FAIR = ["vtc", "vtc-predict", "vtc-oracle", "vtc-noisy:0.5", "vtc-cap:120", "drr:16", "drr:0.001", "wsc", "wsc:1,1,2"]
"""All requests are equal, so the unit of WSC is the same for every tenant."""

demands = st.lists(st.tuples(st.floats(0.05, 1.5), st.sampled_from([1.0, 1.0, 2.0, 3.0])), min_size=2, max_size=5)


def check(policy: QueuePolicy, demands: Sequence[tuple[float, float]]) -> None:
    """Check the shares under evenly sent demands: for each tenant a fraction of the capacity, and a weight."""
    model = BatchModel(policy, POOL)
    names = [f"t{number}" for number in range(len(demands))]
    due = [0.0] * len(demands)
    for _ in range(STEPS):
        for number, (part, weight) in enumerate(demands):
            due[number] += part * CAPACITY / SERVICE
            while due[number] >= 1:
                due[number] -= 1
                model.arrive(Job(names[number], INPUT, OUTPUT, weight))
        model.step()
    asked = {name: part * CAPACITY for name, (part, _) in zip(names, demands, strict=True)}
    fair = max_min_shares(CAPACITY, asked, {name: weight for name, (_, weight) in zip(names, demands, strict=True)})
    check_shares({name: model.service(name) / STEPS for name in names}, fair, margin=MARGIN)


@pytest.mark.parametrize("name", FAIR)
@settings(max_examples=10, deadline=None)
@given(demands=demands)
def test_shares_are_max_min_fair(name: str, demands: list[tuple[float, float]]) -> None:
    check(make_policy(name), demands)


@pytest.mark.parametrize("unfair", [FavouriteFirst, NearlyFair, lambda: make_policy("fcfs")])
def test_the_check_rejects_unfair_policies(unfair: type[QueuePolicy]) -> None:
    with pytest.raises(AssertionError, match="shares are wrong"):
        check(unfair(), [(1.2, 1.0), (0.9, 1.0), (0.5, 1.0)])


def test_the_check_rejects_a_policy_that_ignores_weights() -> None:
    class Unweighted(FavouriteFirst):
        def _next_tenant(self) -> str | None:
            received = {tenant: self.received[tenant].service for tenant in self._queues}
            return min(received, key=lambda tenant: (received[tenant], tenant), default=None)

    check(Unweighted(), [(1.2, 1.0), (0.9, 1.0)])
    with pytest.raises(AssertionError, match="shares are wrong"):
        check(Unweighted(), [(1.2, 1.0), (0.9, 2.0)])


def test_a_cap_below_the_pool_leaves_capacity_unused() -> None:
    """Remark 4.7: a single tenant can fill no more than its cap."""
    model = BatchModel(make_policy("vtc-cap:24"), POOL)
    for _ in range(200):
        model.arrive(Job("alone", INPUT, OUTPUT))
    for _ in range(100):
        model.step()
    assert model.service("alone") / 100 == pytest.approx(CAPACITY * 24 / POOL, rel=0.05)
