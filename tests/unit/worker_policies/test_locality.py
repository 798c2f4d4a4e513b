"""Locality: the longest cached prefix within the chosen tenant, the bound on overtaking, and VTC's own bound."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.policies.fairness.accounting import ArrivalQueue
from gpu_worker.policies.fairness.interface import QueuePolicy, QueueRequest
from gpu_worker.policies.fairness.locality import PrefixLookups
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.fairness.tiered import TieredQueue, make_queue
from tests.support.queue.calls import Call, Story, calls

INPUT_MAX, OUTPUT_MAX, BATCH = 40, 12, 4


def local(
    name: str = "vtc", *, cached: dict[str, int] | None = None, overtaken_max: int = 64, lookups_max: int = 64
) -> QueuePolicy:
    policy = make_policy(name)
    lookups = PrefixLookups((cached or {}).__getitem__, overtaken_max=overtaken_max, lookups_max=lookups_max)
    policy.use_lookups(lookups)
    return policy


def put(policy: QueuePolicy, *names: str, tokens: int = 10) -> None:
    """Add requests; a name's first letter is the tenant."""
    for name in names:
        policy.enqueue(QueueRequest(name, name[0], tokens))


def next_of(policy: QueuePolicy) -> str:
    head = policy.peek()
    assert head is not None
    return policy.admit(head.request_id).request_id


@pytest.mark.parametrize("name", ["vtc", "fcfs", "drr:20", "wsc", "tiered:vtc", "vtc-cap:1000"])
def test_the_longest_cached_prefix_of_the_chosen_tenant_goes_first(name: str) -> None:
    policy = local(name, cached={"a1": 0, "a2": 5, "a3": 8, "a4": 8, "b1": 10})
    put(policy, "a1", "a2", "a3", "a4")
    assert [next_of(policy) for _ in range(4)] == ["a3", "a4", "a2", "a1"]


def test_another_tenants_longer_prefix_does_not_go_first() -> None:
    policy = local(cached={"a1": 0, "b1": 10, "b2": 10})
    put(policy, "b1", "b2", "a1")
    assert [next_of(policy) for _ in range(3)] == ["a1", "b1", "b2"]
    fastest = local("lpm", cached={"a1": 0, "b1": 10, "b2": 10})
    put(fastest, "b1", "b2", "a1")
    assert [next_of(fastest) for _ in range(3)] == ["b1", "b2", "a1"]


def test_dlpm_takes_the_longest_prefix_of_the_tenants_without_debt() -> None:
    policy = local("dlpm:15", cached={"a1": 0, "b1": 5, "b2": 9, "b3": 10})
    put(policy, "a1", "b1", "b2", "b3")
    assert [next_of(policy) for _ in range(4)] == ["b3", "b2", "a1", "b1"]  # two of b are its quantum


def test_a_request_is_overtaken_at_most_so_often() -> None:
    cached = {"a0": 0, **{f"a{number}": 9 for number in range(1, 9)}}
    policy = local(cached=cached, overtaken_max=3)
    put(policy, "a0", *(f"a{number}" for number in range(1, 9)))
    assert [next_of(policy) for _ in range(5)] == ["a1", "a2", "a3", "a0", "a4"]


def test_an_undone_admission_overtakes_nothing() -> None:
    policy = local(cached={"a0": 0, "a1": 9, "a2": 9}, overtaken_max=1)
    put(policy, "a0", "a1", "a2")
    for _ in range(5):
        policy.undo_admit(next_of(policy))
    assert policy.record("a0").overtaken == 0
    assert [next_of(policy) for _ in range(3)] == ["a1", "a0", "a2"]


def test_the_choice_follows_each_change_of_the_queue_and_each_pass() -> None:
    cached = {"a0": 0, "a1": 0, "a2": 9}
    policy = make_policy("vtc")
    policy.use_lookups(lookups := PrefixLookups(cached.__getitem__))

    def head() -> str:
        found = policy.peek()
        assert found is not None
        return found.request_id

    put(policy, "a0", "a1")
    assert head() == "a0"
    put(policy, "a2")
    assert head() == "a2"
    policy.cancel("a2")
    assert head() == "a0"
    cached["a1"] = 5
    assert head() == "a0"
    lookups.begin_pass()
    assert head() == "a1"


def test_a_pass_has_so_many_lookups_and_looks_up_no_request_twice() -> None:
    looked: list[str] = []

    def cached_tokens(request_id: str) -> int:
        looked.append(request_id)
        return int(request_id[1:])

    lookups = PrefixLookups(cached_tokens, window=4, lookups_max=6)
    policy = make_policy("vtc")
    policy.use_lookups(lookups)
    put(policy, *(f"{tenant}{number}" for number in range(6) for tenant in "ab"))
    assert [next_of(policy), next_of(policy)] == ["a3", "b1"]  # of b, the third lookup was one too many
    assert looked == ["a0", "a1", "a2", "a3", "b0", "b1"]
    lookups.begin_pass()
    assert next_of(policy) == "a4"


@settings(max_examples=40, deadline=None)
@given(
    places=st.lists(st.integers(0, 30), unique=True, max_size=30),
    gone=st.sets(st.integers(0, 30)),
    count=st.integers(1, 9),
)
def test_the_first_of_a_queue_are_in_the_order_of_arrival(places: list[int], gone: set[int], count: int) -> None:
    queue: ArrivalQueue[int] = ArrivalQueue()
    for place in places:
        queue.add(place, place)
    for place in gone.intersection(places):
        queue.remove(place)
    for place in sorted(gone.intersection(places))[:2]:  # back at its old place
        queue.add(place, place)
    left = sorted(set(places) - gone | set(sorted(gone.intersection(places))[:2]))
    assert list(queue.first(count)) == left[:count]
    if left:
        assert queue.head() == left[0]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), story=calls)
def test_no_story_overtakes_a_request_more_often(seed: int, story: list[Call]) -> None:
    chance, most = Random(seed), 2
    policy = make_policy("vtc")
    policy.use_lookups(PrefixLookups(lambda _: chance.randrange(30), window=5, overtaken_max=most))
    run = Story(policy)
    overtaken: dict[str, int] = {}
    for number, call in enumerate(story):
        waiting = list(run.waiting)
        run.apply(number, call)
        for request_id in set(waiting) - set(run.waiting) if call[0] == "admit" else ():
            tenant = run.requests[request_id].tenant
            for name in waiting:
                if name < request_id and run.requests[name].tenant == tenant:
                    overtaken[name] = overtaken.get(name, 0) + 1
        if call[0] == "back":
            return  # what an undone admission overtook is another test's
    assert max(overtaken.values(), default=0) <= most


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_counters_stay_within_vtcs_bound_whatever_is_cached(seed: int) -> None:
    """Lemma 4.3, with a full batch and refunds for cached prompts."""
    chance = Random(seed)
    policy = make_policy("vtc")
    policy.use_lookups(lookups := PrefixLookups(lambda _: chance.randrange(INPUT_MAX)))
    left: dict[str, int] = {}
    for number in range(120):
        for _ in range(chance.randrange(4)):
            name = f"{chance.choice('abc')}{number}.{chance.random()}"
            policy.enqueue(QueueRequest(name, name[0], chance.randint(1, INPUT_MAX)))
        lookups.begin_pass()
        while len(left) < BATCH and (head := policy.peek()) is not None:
            policy.admit(head.request_id)
            policy.on_cached(head.request_id, lookups.tokens(head.request_id))
            left[head.request_id] = chance.randint(1, OUTPUT_MAX)
        policy.on_decoded(1)
        left = {name: tokens - 1 for name, tokens in left.items()}
        for name in [name for name, tokens in left.items() if not tokens]:
            del left[name]
            policy.finish(name)
        (counters,) = policy.counters()
        if len(counters) > 1:
            bound = max(INPUT_MAX, 2 * BATCH * (INPUT_MAX + OUTPUT_MAX))
            assert max(counters.values()) - min(counters.values()) <= bound


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_tenant_is_the_one_that_vtc_chooses(seed: int) -> None:
    """With locality and without, the same tenant is next if all requests cost the same."""
    chance = Random(seed)
    plain, with_locality = make_policy("vtc"), make_policy("vtc")
    with_locality.use_lookups(PrefixLookups(lambda _: chance.randrange(9)))
    for number in range(120):
        if chance.random() < 0.6:
            for policy in (plain, with_locality):
                put(policy, f"{'abcd'[number % 4]}{number}")
        elif plain.peek() is not None:
            heads = [policy.peek() for policy in (plain, with_locality)]
            assert heads[0] is not None and heads[1] is not None  # noqa: PT018
            assert heads[0].tenant == heads[1].tenant
            for policy, head in zip((plain, with_locality), heads, strict=True):
                policy.admit(head.request_id if head else "")


def test_locality_is_off_unless_it_is_set() -> None:
    assert not make_queue("vtc").locality
    assert not make_queue("tiered:vtc", {}).locality
    assert make_queue("vtc", {"locality": True}).locality
    tiered = make_queue("tiered:vtc", {"locality": True})
    assert isinstance(tiered, TieredQueue) and tiered.locality  # noqa: PT018
    assert make_queue("lpm").locality
    with pytest.raises(ValueError, match="locality"):
        make_queue("vtc", {"locality": "no"})
