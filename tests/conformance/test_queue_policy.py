"""The rules of every queue policy. They come from the registry, so a new policy is tested when it is registered."""

from __future__ import annotations

import inspect
import sys
from collections import deque
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.policies.fairness.accounting import TenantService
from gpu_worker.policies.fairness.interface import QueuePolicy, QueueRequest
from gpu_worker.policies.fairness.registry import all_policies, make_policy

POLICIES = all_policies()
every_policy = pytest.mark.parametrize("name", sorted(entry.example for entry in POLICIES.values()))


def curved(input_tokens: int, output_tokens: int) -> float:
    """An h that is not linear: later output tokens cost more."""
    return input_tokens + 2 * output_tokens + input_tokens * output_tokens / 64


def put(policy: QueuePolicy, request_id: str, tenant: str = "a", input_tokens: int = 10) -> None:
    policy.enqueue(QueueRequest(request_id, tenant, input_tokens))


def admit_next(policy: QueuePolicy) -> str:
    head = policy.peek()
    assert head is not None
    return policy.admit(head.request_id).request_id


def test_every_policy_class_is_registered() -> None:
    def subclasses(cls: type[Any]) -> list[type[Any]]:
        return [found for child in cls.__subclasses__() for found in (child, *subclasses(child))]

    product = {cls for cls in subclasses(QueuePolicy) if cls.__module__.startswith("gpu_worker.")}
    assert product - {cls for cls in product if inspect.isabstract(cls)} == {
        entry.policy for entry in POLICIES.values()
    }


@every_policy
def test_the_load_of_an_adapter_is_charged_once_as_input_tokens(name: str) -> None:
    policy = make_policy(name)
    put(policy, "loads")
    policy.enqueue(QueueRequest("plain", "b", 10))
    for request_id in ("loads", "plain"):
        policy.admit(request_id)
    before = policy.counter("a"), policy.counter("b")
    policy.on_adapter_loaded("loads")
    policy.on_decoded(3)
    for request_id in ("loads", "plain"):
        policy.finish(request_id)
    received = policy.received
    assert received["a"].service - received["b"].service == policy.adapter_load_tokens
    assert received["a"].input_tokens == received["b"].input_tokens == 10
    if (counter := policy.counter("a")) is not None and before[0] is not None:
        assert before[0] == before[1]
        assert counter > (policy.counter("b") or 0.0)


@every_policy
def test_a_waiting_request_is_next_unless_the_policy_is_not_work_conserving(name: str) -> None:
    policy = make_policy(name)
    for number in range(3):
        policy.enqueue(QueueRequest(f"r{number}", "a", 10_000))
    for left in (3, 2, 1):
        assert policy.waiting == left
        if (head := policy.peek()) is None:
            assert not policy.work_conserving
            return
        policy.admit(head.request_id)
    assert policy.work_conserving or name.startswith("vtc-cap")


@every_policy
def test_peek_changes_nothing(name: str) -> None:
    policy = make_policy(name)
    for number in range(6):
        put(policy, f"r{number}", f"t{number % 3}")
    assert {policy.peek() for _ in range(5)} == {policy.peek()}
    assert policy.waiting == 6


@every_policy
def test_a_request_set_aside_waits_but_is_not_next(name: str) -> None:
    policy = make_policy(name)
    for number in range(6):
        put(policy, f"r{number}", "ab"[number % 2])
    for request_id in ("r0", "r1", "r3", "r5"):
        policy.set_aside(request_id)
    assert (policy.waiting, policy.waiting_of("a"), policy.waiting_of("b")) == (6, 3, 3)
    assert all(policy.holds(f"r{number}") for number in range(6))
    assert [admit_next(policy) for _ in range(2)] == ["r2", "r4"]
    assert policy.peek() is None
    put(policy, "late", "b")
    assert admit_next(policy) == "late"
    policy.cancel("r5")
    for request_id in ("r3", "r0", "r1", "r0"):
        policy.take_back(request_id)
    assert sorted(admit_next(policy) for _ in range(3)) == ["r0", "r1", "r3"]
    assert policy.waiting == 0


@every_policy
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_what_is_set_aside_and_taken_back_changes_no_order_and_no_charge(name: str, seed: int) -> None:
    chance = Random(seed)
    plain, moved = make_policy(name), make_policy(name)
    waiting: list[str] = []
    for number in range(40):
        tenant = chance.choice("abc")
        for policy in (plain, moved):
            put(policy, f"r{number}", tenant, 10 + number % 7)
        waiting.append(f"r{number}")
        aside = [each for each in waiting if chance.random() < 0.3]
        for request_id in aside:
            moved.set_aside(request_id)
        for request_id in chance.sample(aside, len(aside)):
            moved.take_back(request_id)
        assert moved.peek() == plain.peek()
        if number % 3 == 0 and (head := plain.peek()) is not None:
            waiting.remove(head.request_id)
            for policy in (plain, moved):
                policy.admit(head.request_id)
                policy.on_decoded(2)
    assert moved.received == plain.received
    assert moved.counters() == plain.counters()


@every_policy
def test_within_a_tenant_first_come_first_served(name: str) -> None:
    policy = make_policy(name)
    for number in range(20):
        put(policy, f"r{number:02}", "ab"[number % 2])
    order = [admit_next(policy) for _ in range(20)]
    for parity in (0, 1):
        mine = [request_id for request_id in order if int(request_id[1:]) % 2 == parity]
        assert mine == sorted(mine)


@every_policy
def test_admissions_undone_in_any_order_restore_the_order_of_arrival(name: str) -> None:
    policy = make_policy(name)
    for number in range(4):
        put(policy, f"r{number}")
    for _ in range(3):
        admit_next(policy)
    for request_id in ("r1", "r0", "r2"):
        policy.undo_admit(request_id)
    assert [admit_next(policy) for _ in range(4)] == ["r0", "r1", "r2", "r3"]


@every_policy
@pytest.mark.parametrize("counted", [0, 4, 10, 40])
def test_a_prompt_counted_later_costs_as_much_as_one_counted_at_admission(name: str, counted: int) -> None:
    def policy_after(estimate: int) -> QueuePolicy:
        policy = make_policy(name, curved)
        put(policy, "a1", "a", estimate)
        put(policy, "b1", "b")
        admit_next(policy)
        admit_next(policy)
        policy.on_generated("a1", 3)
        policy.on_decoded(2)
        policy.on_prompt_counted("a1", counted)
        policy.on_decoded(4)
        policy.on_generated("a1", 12)
        return policy

    late, known = policy_after(10), policy_after(counted)
    assert late.record("a1").request.input_tokens == counted
    received = late.received["a"]
    assert (received.input_tokens, received.output_tokens) == (counted, 12)
    assert received.service == pytest.approx(curved(counted, 12))
    assert late.counter("a") == (None if (counter := known.counter("a")) is None else pytest.approx(counter))
    assert late.received["b"] == known.received["b"]


@every_policy
def test_a_preempted_request_resumes_before_later_ones_and_pays_once(name: str) -> None:
    policy = make_policy(name)
    put(policy, "r0")
    put(policy, "r1")
    admit_next(policy)
    policy.on_generated("r0", 4)
    before = policy.received["a"].service
    policy.preempt("r0")
    assert policy.record("r0").preemptions == 1
    assert admit_next(policy) == "r0"
    policy.on_generated("r0", 3)
    assert policy.received["a"].service == before
    policy.on_generated("r0", 5)
    assert policy.received["a"].service == before + 2
    assert policy.received["a"].output_tokens == 5


@every_policy
@pytest.mark.parametrize("call", ["admit", "undo_admit", "preempt", "finish", "cancel", "remove"])
def test_an_unknown_request_is_a_key_error_and_changes_nothing(name: str, call: str) -> None:
    policy = make_policy(name)
    put(policy, "r0")
    with pytest.raises(KeyError):
        getattr(policy, call)("unknown")
    assert (policy.waiting, policy.running, admit_next(policy)) == (1, 0, "r0")


@every_policy
def test_an_id_in_use_is_refused(name: str) -> None:
    policy = make_policy(name)
    put(policy, "r0")
    with pytest.raises(ValueError, match="r0"):
        put(policy, "r0")
    admit_next(policy)
    with pytest.raises(ValueError, match="r0"):
        put(policy, "r0")
    policy.finish("r0")
    put(policy, "r0")


@every_policy
def test_state_is_bounded_by_the_present_requests(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a policy keeps of absent tenants is bounded by a constant of its module named ..._KEPT_MAX."""
    for module in [module for path, module in sys.modules.items() if path.startswith("gpu_worker.policies.")]:
        for constant in [constant for constant in vars(module) if constant.endswith("_KEPT_MAX")]:
            monkeypatch.setattr(module, constant, 50)
    policy = make_policy(name)
    put(policy, "stays", "stays")
    admit_next(policy)
    for number in range(5_000):
        put(policy, f"r{number}", f"t{number}")
        if number % 3:
            policy.admit(f"r{number}")
        policy.remove(f"r{number}")
    assert kept(policy) < 600


def kept(part: object, depth: int = 4) -> int:
    """Count the entries of all containers inside."""
    if isinstance(part, dict):
        return len(part) + sum(kept(value, depth - 1) for value in part.values())
    if isinstance(part, list | set | tuple | deque):
        return len(part)
    if not depth or not type(part).__module__.startswith("gpu_worker."):
        return 0
    names = [name for cls in type(part).__mro__ for name in getattr(cls, "__slots__", ())]
    return sum(kept(getattr(part, name), depth - 1) for name in {*names, *getattr(part, "__dict__", ())})


Call = tuple[str, int, int]


@every_policy
@settings(max_examples=60, deadline=None)
@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from(["put", "admit", "tokens", "count", "end", "back", "evict"]),
            st.integers(0, 4),
            st.integers(0, 40),
        )
    )
)
def test_charges_add_up_to_h_of_the_final_lengths(name: str, calls: list[Call]) -> None:
    policy = make_policy(name, curved)
    true: dict[str, tuple[str, int, int]] = {}
    running: list[str] = []
    evicted: set[str] = set()
    for step, (call, tenant, tokens) in enumerate(calls):
        if call == "put":
            put(policy, f"r{step}", f"t{tenant}", tokens)
        elif call == "admit" and (head := policy.peek()) is not None:
            policy.admit(head.request_id)
            running.append(head.request_id)
            _, _, outputs = true.get(head.request_id, ("", 0, 0))
            true[head.request_id] = (head.tenant, head.input_tokens, outputs)
        elif running:
            request_id = running[tokens % len(running)]
            owner, inputs, outputs = true[request_id]
            if call == "tokens":
                policy.on_generated(request_id, tokens)
                true[request_id] = (owner, inputs, max(outputs, tokens))
                continue
            if call == "count":
                policy.on_prompt_counted(request_id, tokens)
                true[request_id] = (owner, tokens, outputs)
                continue
            if call == "admit":
                continue
            running.remove(request_id)
            if call == "end":
                policy.finish(request_id)
            elif call == "back":
                policy.undo_admit(request_id)
                if request_id not in evicted:  # a resumed request keeps its earlier charges
                    del true[request_id]
            else:
                policy.preempt(request_id)
                evicted.add(request_id)
    for name in {owner for owner, _, _ in true.values()}:
        mine = [(inputs, outputs) for owner, inputs, outputs in true.values() if owner == name]
        got = policy.received.get(name, TenantService())  # absent tenants without service are dropped
        assert got.service == pytest.approx(sum(curved(*lengths) for lengths in mine))
        assert (got.input_tokens, got.output_tokens) == (sum(i for i, _ in mine), sum(o for _, o in mine))
    assert policy.running == len(running)
