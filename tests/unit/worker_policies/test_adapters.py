"""The adapters of a device: the least recently used one leaves, and none that a running request uses."""

from __future__ import annotations

from random import Random

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.adapters import LoadedAdapters
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.tiered import make_queue


def test_the_adapter_that_was_unused_for_the_longest_time_leaves() -> None:
    adapters = LoadedAdapters(2, lambda: ())
    assert [adapters.use(name) for name in ("a", "b", "a", "c", "a", "b")] == [True, True, False, True, False, True]
    assert ("a" in adapters, "b" in adapters, "c" in adapters) == (True, True, False)


def test_an_adapter_in_use_stays() -> None:
    running = ["a"]
    adapters = LoadedAdapters(2, lambda: running)
    for name in ("a", "b", "c"):
        adapters.use(name)
    assert ("a" in adapters, "b" in adapters, "c" in adapters) == (True, False, True)


def test_the_device_never_holds_more_than_it_can_and_all_that_runs() -> None:
    chance, running = Random(1), list[str]()
    adapters = LoadedAdapters(3, lambda: running)
    for _ in range(2000):
        running[:] = [name for name in running if chance.random() < 0.7]
        wanted = chance.choice("abcdef")
        if len({*running, wanted}) <= 3:
            adapters.use(wanted)
            running.append(wanted)
        assert sum(name in adapters for name in "abcdef") <= 3
        assert all(name in adapters for name in running)


def test_a_tiers_share_and_its_tenants_pay_the_same_for_a_load() -> None:
    queue = make_queue("tiered:vtc", {"adapter_load_tokens": 100})
    queue.enqueue(QueueRequest("r", "a", 10, weight=2.0, tier=Tier.PREMIUM))
    queue.admit("r")
    queue.on_adapter_loaded("r")
    assert queue.shares.given(Tier.PREMIUM) == queue.received["a"].service == 110.0  # type: ignore[attr-defined]
    assert queue.counter("a") == 55.0
    assert make_queue("vtc", {"adapter_load_tokens": 7}).adapter_load_tokens == 7
