"""The shares of tenants against max-min fairness, and the functions that measure service."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.policies.service import SERVICE_FUNCTIONS, service_delta, service_function
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


every_service = pytest.mark.parametrize("name", sorted(SERVICE_FUNCTIONS))

tokens = st.integers(0, 20_000)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weighted", 100 + 2 * 10),
        ("tokens", 110),
        ("profiled", 210 + 10 + 0.04 * 1000 + 0.032 * 100 + 11.46),
        ("flops", (2 * 6.74e9 * 110 + 2 * 32 * 4096 * 110 * 111) / 1e9),
    ],
)
def test_the_values_of_100_in_and_10_out(name: str, value: float) -> None:
    assert service_function(name)(100, 10) == pytest.approx(value)


@every_service
@given(inputs=tokens, outputs=tokens)
def test_each_further_token_has_a_positive_cost(name: str, inputs: int, outputs: int) -> None:
    h = service_function(name)
    assert 0 <= h(inputs, outputs) < min(h(inputs + 1, outputs), h(inputs, outputs + 1))


@every_service
@given(inputs=tokens, cuts=st.lists(tokens, min_size=1, max_size=8))
def test_the_charges_of_a_request_add_up_to_h(name: str, inputs: int, cuts: list[int]) -> None:
    h, counts = service_function(name), [0, *sorted(cuts)]
    charged = sum(service_delta(h, inputs, before, after) for before, after in pairwise(counts))
    assert h(inputs, 0) + charged == pytest.approx(h(inputs, counts[-1]))


def test_the_error_for_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'joules'.*weighted.*profiled"):
        service_function("joules")
