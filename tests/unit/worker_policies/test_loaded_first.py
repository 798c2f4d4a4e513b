"""Loaded adapters first: within the chosen tenant, with the bound of locality, and with locality itself."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.policies.fairness.interface import QueuePolicy, QueueRequest
from gpu_worker.policies.fairness.loaded_first import LoadedFirst
from gpu_worker.policies.fairness.registry import make_policy


def first_of(
    loaded: set[str], name: str = "vtc", *, cached: dict[str, int] | None = None, most: int = 64
) -> QueuePolicy:
    policy = make_policy(name)
    tokens = (cached or {}).get
    policy.use_lookups(LoadedFirst(loaded.__contains__, lambda name: tokens(name, 0), overtaken_max=most))
    return policy


def put(policy: QueuePolicy, *names: str) -> None:
    """Add requests; a name's first letter is the tenant."""
    for name in names:
        policy.enqueue(QueueRequest(name, name[0], 10))


def next_of(policy: QueuePolicy) -> str:
    head = policy.peek()
    assert head is not None
    return policy.admit(head.request_id).request_id


@pytest.mark.parametrize("name", ["vtc", "fcfs", "drr:20", "wsc", "tiered:vtc"])
def test_the_first_request_that_needs_no_load_goes_first(name: str) -> None:
    policy = first_of({"a2", "a4"}, name)
    put(policy, "a1", "a2", "a3", "a4")
    assert [next_of(policy) for _ in range(4)] == ["a2", "a4", "a1", "a3"]


def test_another_tenants_loaded_adapter_does_not_go_first() -> None:
    policy = first_of({"b1", "b2"})
    put(policy, "b1", "b2", "a1")
    assert [next_of(policy) for _ in range(3)] == ["a1", "b1", "b2"]


def test_of_the_loaded_ones_the_longest_cached_prefix_goes_first() -> None:
    policy = first_of({"a2", "a3"}, cached={"a1": 99, "a2": 0, "a3": 5, "a4": 7})
    put(policy, "a1", "a2", "a3", "a4")
    assert [next_of(policy) for _ in range(4)] == ["a3", "a2", "a1", "a4"]


def test_what_is_loaded_may_change_within_a_pass() -> None:
    policy = first_of(loaded := {"a3"})
    put(policy, "a1", "a2", "a3", "a4")
    assert next_of(policy) == "a3"
    loaded.add("a2")
    assert next_of(policy) == "a2"


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), most=st.integers(1, 5))
def test_a_request_is_overtaken_at_most_so_often(seed: int, most: int) -> None:
    chance = Random(seed)
    names = [f"a{number:03}" for number in range(40)]
    policy = first_of({name for name in names if chance.random() < 0.5}, most=most)
    put(policy, *names)
    order = [next_of(policy) for _ in names]
    for place, name in enumerate(order):
        assert sum(earlier > name for earlier in order[:place]) <= most
