"""The adapters of a device: the least recently used one leaves, and none that a running request uses."""

from __future__ import annotations

from random import Random

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.adapters import HELD_BACK_MAX, HeldBack, LoadedAdapters
from gpu_worker.policies.fairness.interface import QueuePolicy, QueueRequest
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


def put(queue: QueuePolicy, *names: str) -> None:
    """Add requests; a name's first letter is the tenant."""
    for name in names:
        queue.enqueue(QueueRequest(name, name[0], 10))


def test_a_pass_sets_aside_so_many_and_the_next_ones_get_on_behind_them() -> None:
    queue = make_queue("tiered:vtc", {"share_slack": 1e9})
    stuck = [f"a{number:03}" for number in range(400)]
    put(queue, *stuck, "b")
    held = HeldBack(queue)
    passes = 0
    while (head := queue.peek()) is not None and head.request_id != "b":
        held.begin_pass({"used"}, is_full=True)
        passes += 1
        added = 0
        while (head := queue.peek()) is not None and head.request_id != "b" and held.add(head.request_id, "other"):
            added += 1
        assert added <= HELD_BACK_MAX
    assert 400 / HELD_BACK_MAX < passes <= 400 / 11 + 1
    assert queue.waiting == 401


def test_what_may_find_its_place_comes_back_first() -> None:
    queue = make_queue("tiered:vtc", {})
    put(queue, *(f"a{number:02}" for number in range(30)))
    held = HeldBack(queue)
    held.begin_pass((), is_full=True)
    for number in range(30):
        assert held.add(f"a{number:02}", "even" if number % 2 == 0 else "odd")
    held.begin_pass({"odd"}, is_full=True)
    back = [queue.admit(queue.peek().request_id).request_id for _ in range(17)]  # type: ignore[union-attr]
    assert set(back) >= {f"a{number:02}" for number in range(1, 30, 2)}, "the adapter is in use"
    assert set(back) >= {"a00", "a02"}, "it is their turn, and a00 was the first"
    assert (queue.peek(), queue.waiting) == (None, 13)


def test_a_free_place_brings_back_the_earliest_and_the_first_comes_back_in_any_pass() -> None:
    queue = make_queue("tiered:vtc", {})
    put(queue, *(f"a{number:02}" for number in range(30)))
    held = HeldBack(queue)
    held.begin_pass((), is_full=True)
    order = ["a29", *(f"a{number:02}" for number in range(29))]
    for name in order:
        held.add(name, name)
    held.forget("a03")
    queue.cancel("a03")
    held.begin_pass((), is_full=False)
    back = sorted(queue.admit(queue.peek().request_id).request_id for _ in range(16))  # type: ignore[union-attr]
    assert back == sorted(each for each in order[:17] if each != "a03")
    assert queue.peek() is None
