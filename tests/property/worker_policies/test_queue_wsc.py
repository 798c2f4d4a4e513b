"""WSC worked by hand, and its bounds: interactions in progress are preferred, but no tenant starves for them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.policies.fairness import wsc
from gpu_worker.policies.fairness.interface import Applications, QueueRequest
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.fairness.wsc import LEAD_MAX, Expectations, RequestLengths, WeightedServiceCounter
from tests.support.queue.calls import Call, Story, calls

LABELLED = Applications(as_labelled=True)


def put(policy: WeightedServiceCounter, request_id: str, interaction: str = "", input_tokens: int = 256) -> None:
    """The first letter of the id is the tenant."""
    policy.enqueue(QueueRequest(request_id, request_id[0], input_tokens, app="x", interaction=interaction))


def serve(policy: WeightedServiceCounter, output_tokens: int = 0) -> str:
    head = policy.peek()
    assert head is not None
    policy.admit(head.request_id)
    policy.on_decoded(output_tokens)
    policy.finish(head.request_id)
    return head.request_id


def test_the_cost_of_a_request_is_relative_to_its_application() -> None:
    """a = 1, b = 2, c = 1. Without history, 256 input and 256 output tokens are expected."""
    policy = WeightedServiceCounter(applications=LABELLED)
    policy.enqueue(QueueRequest("r", "a", 100, 2.0, app="x", system_tokens=60))
    policy.admit("r")
    assert policy.counter("a") == pytest.approx((40 + 2 * 60) / 512 / 2)
    policy.on_decoded(30)
    assert policy.counter("a") == pytest.approx((40 + 2 * 60 + 30) / 512 / 2)
    policy.finish("r")
    policy.enqueue(QueueRequest("s", "b", 100, 1.0, app="x", system_tokens=60))
    policy.admit("s")
    policy.on_decoded(30)
    lifted = policy.counter("b") - policy.counter("a")
    assert lifted == pytest.approx(1.0), "a request of exactly the usual size costs 1"


def test_two_applications_of_different_size_share_by_requests_and_not_by_tokens() -> None:
    policy = WeightedServiceCounter(applications=Applications({"a": "small", "b": "large"}))
    for number in range(300):
        policy.enqueue(QueueRequest(f"a{number}", "a", 10))
        policy.enqueue(QueueRequest(f"b{number}", "b", 1000))
    served = [serve(policy, 1 if number % 2 else 2)[0] for number in range(200)]
    assert served[-100:].count("a") == pytest.approx(50, abs=2)


def test_the_weights_of_its_name() -> None:
    for name, output_weight in (("wsc", 1.0), ("wsc:1,1,2", 2.0), ("wsc:0.5,1,3", 3.0)):
        policy = make_policy(name)
        assert isinstance(policy, WeightedServiceCounter)
        put(policy, "a")
        policy.admit("a")
        before = policy.counter("a")
        policy.on_decoded(1)
        input_weight = 0.5 if name.startswith("wsc:0.5") else 1.0
        assert policy.counter("a") - before == pytest.approx(output_weight / (256 * (input_weight + output_weight)))


def test_the_next_stage_goes_before_new_interactions_also_of_its_own_tenant() -> None:
    policy = WeightedServiceCounter()
    put(policy, "a0", "plan")
    assert serve(policy) == "a0"
    put(policy, "b0")
    put(policy, "a1", "other")
    put(policy, "a2", "plan")
    assert [serve(policy) for _ in range(3)] == ["a2", "b0", "a1"]


def test_interactions_of_the_same_name_are_separate_by_tenant() -> None:
    policy = WeightedServiceCounter()
    put(policy, "a0", "plan", 512)
    serve(policy)
    put(policy, "c0", input_tokens=1)
    put(policy, "b0", "plan", 1)
    assert policy.peek() == QueueRequest("b0", "b", 1, app="x", interaction="plan"), "a tie, by name"
    put(policy, "a1", "plan", 1)
    head = policy.peek()
    assert head is not None
    assert head.request_id == "a1"


def test_all_waiting_stages_are_preferred_once_one_was_admitted() -> None:
    policy = WeightedServiceCounter()
    for request_id in ("b0", "a0", "a1", "b1"):
        put(policy, request_id, "plan" if request_id[0] == "a" else "")
    policy.admit("a1")
    assert serve(policy) == "a0"
    policy.undo_admit("a1")
    assert serve(policy) == "a1"


def test_an_undone_first_stage_does_not_start_its_interaction() -> None:
    policy = WeightedServiceCounter()
    for request_id in ("a0", "b0", "b1"):
        put(policy, request_id, "plan" if request_id[0] == "b" else "")
    policy.admit("b0")
    head = policy.peek()
    assert head is not None
    assert head.request_id == "b1"
    policy.undo_admit("b0")
    assert serve(policy) == "a0"


def test_an_undone_later_stage_leaves_its_interaction_preferred() -> None:
    policy = WeightedServiceCounter()
    for request_id in ("a0", "a1", "a2", "b0"):
        put(policy, request_id, "plan" if request_id[0] == "a" else "")
    assert serve(policy) == "a0"
    policy.admit("a1")
    assert policy.peek() is not None
    policy.undo_admit("a1")
    assert [serve(policy) for _ in range(3)] == ["a1", "a2", "b0"]


def endless(policy: WeightedServiceCounter, rounds: int) -> int:
    """Return how often b is served beside an interaction of a that always has its next stage waiting."""
    put(policy, "a", "endless")
    for number in range(rounds):
        put(policy, f"b{number}")
    served = [serve(policy)[0]]
    for number in range(1, rounds):
        put(policy, f"a{number}", "endless")
        served.append(serve(policy, 256)[0])
    return served.count("b")


def test_an_endless_interaction_starves_no_tenant() -> None:
    assert endless(WeightedServiceCounter(), 400) >= 400 / 2 - LEAD_MAX - 2
    assert endless(WeightedServiceCounter(stages_first_max=5, lead_max=math.inf), 400) >= 400 / 2 - 5 - 2
    assert endless(WeightedServiceCounter(stages_first_max=10**9), 400) >= 400 / 2 - LEAD_MAX - 2


def test_the_paper_without_bounds_starves() -> None:
    """So the test above passes because of the bounds."""
    assert endless(WeightedServiceCounter(stages_first_max=10**9, lead_max=math.inf), 400) == 0


@settings(max_examples=200, deadline=None)
@given(story=calls, lead_max=st.sampled_from([0.0, 0.05, 1.0]), stages=st.integers(1, 4))
def test_the_next_request_against_a_scan(story: list[Call], lead_max: float, stages: int) -> None:
    policy = WeightedServiceCounter(stages_first_max=stages, lead_max=lead_max)
    run = Story(policy)
    for number, call in enumerate(story):
        run.apply(number, call)
        head = policy.peek()
        if head is None:
            assert not run.waiting
            continue
        lowest = min(policy.counter(tenant) for tenant in policy._queues)
        first = [run.requests[request_id] for request_id in run.waiting if in_progress(policy, run, request_id, stages)]
        if first and min(policy.counter(request.tenant) for request in first) - lowest <= lead_max:
            assert head in first
            assert policy.counter(head.tenant) == min(policy.counter(request.tenant) for request in first)
        else:
            assert policy.counter(head.tenant) == lowest
            assert head == policy._queues[head.tenant].head().request


def in_progress(policy: WeightedServiceCounter, run: Story, request_id: str, stages: int) -> bool:
    request = run.requests[request_id]
    charged = [
        record.request
        for record in (*policy._waiting.values(), *policy._running.values())
        if record.prompt_charged and record.request.tenant == request.tenant
    ]
    ended = [run.requests[other] for other in run.ended if other in run.admitted]
    mine = [
        other
        for other in (*charged, *ended)
        if (other.tenant, other.interaction) == (request.tenant, request.interaction)
    ]
    return bool(request.interaction) and 0 < len(mine) < stages


def test_expectations_fall_back_from_stage_to_application_to_all() -> None:
    known = Expectations()
    assert known.of(("x", 0)) == wsc.PRIOR
    known.learn(("x", 0), RequestLengths(100, 10, 1))
    known.learn(("x", 0), RequestLengths(300, 30, 3))
    known.learn(("x", 1), RequestLengths(800, 80, 8))
    known.learn(("y", 0), RequestLengths(0, 0, 0))
    assert known.of(("x", 0)) == RequestLengths(200, 20, 2)
    assert known.of(("x", 1)) == RequestLengths(800, 80, 8)
    assert known.of(("x", 7)).input_tokens == pytest.approx(400)
    assert known.of(("z", 0)).input_tokens == pytest.approx(300)


def test_expectations_follow_an_application_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wsc, "MEMORY", 10)
    known = Expectations()
    for tokens in [100] * 1000 + [500] * 60:
        known.learn(("x", 0), RequestLengths(tokens, 0, 0))
    assert known.of(("x", 0)).input_tokens == pytest.approx(500, rel=0.01)


BATCH = 8
"""Requests in the batch."""

labels = st.fixed_dictionaries(
    {
        "app": st.sampled_from(["", "chat", "mine", "new-{}"]),
        "stage": st.sampled_from(["0", "7", "{}"]),
        "interaction": st.sampled_from(["", "endless", "new-{}", "pair-{half}"]),
    }
)
Lengths = dict[str, tuple[int, int]]


def play(policy: WeightedServiceCounter, lengths: Lengths, label: dict[str, str], ends: int) -> dict[str, int]:
    """Return the tokens of tenants that always wait, until so many requests have ended; "g" labels its as `label`."""
    running: dict[str, int] = {}
    sent = 0

    def send(tenant: str) -> None:
        nonlocal sent
        sent += 1
        own = {name: text.format(sent, half=sent // 2) for name, text in label.items()} if tenant == "g" else {}
        request = QueueRequest(
            f"{tenant}{sent}",
            tenant,
            lengths[tenant][0],
            app=own.get("app", "chat"),
            stage=int(own.get("stage", "0")),
            interaction=own.get("interaction", ""),
        )
        policy.enqueue(request)

    for tenant in [*lengths] * (BATCH + 4):
        send(tenant)
    while ends > 0:
        while len(running) < BATCH and (head := policy.peek()) is not None:
            policy.admit(head.request_id)
            running[head.request_id] = 0
        policy.on_decoded(1)
        for request_id in [*running]:
            running[request_id] += 1
            if running[request_id] >= lengths[request_id[0]][1]:
                policy.finish(request_id)
                del running[request_id]
                send(request_id[0])
                ends -= 1
    return {tenant: got.input_tokens + got.output_tokens for tenant, got in policy.received.items()}


short = st.tuples(st.integers(1, 300), st.integers(1, 60))
long = st.tuples(st.integers(300, 1900), st.integers(1, 100))


def epsilon(lengths: Lengths) -> float:
    """The stated epsilon in tokens: LEAD_MAX requests of usual size, and what a full batch receives, as under VTC. The
    usual size is at most that of the longest request; before any request has ended, it is PRIOR."""
    longest = max(map(sum, lengths.values()))
    return LEAD_MAX * max(longest, 512) + 2 * BATCH * longest


@settings(max_examples=25, deadline=None)
@given(label=labels, gamer=st.one_of(short, long), honest=st.one_of(short, long))
def test_no_labelling_gains_more_than_epsilon(
    label: dict[str, str], gamer: tuple[int, int], honest: tuple[int, int]
) -> None:
    lengths = {"g": gamer, "h": honest}
    for each in (label, {}):
        served = play(WeightedServiceCounter(), lengths, each, 800)
        assert abs(served["g"] - served["h"]) <= epsilon(lengths)


def test_believed_labels_would_gain_without_bound() -> None:
    """So the test above passes because they are not believed: with an application of its own, each request costs 1."""
    lengths, own = {"g": (1500, 100), "h": (100, 50)}, {"app": "mine", "stage": "0", "interaction": ""}
    gained = play(WeightedServiceCounter(applications=LABELLED), lengths, own, 1000)
    assert gained["g"] > gained["h"] + 4 * epsilon(lengths)
    plain, labelled = (play(WeightedServiceCounter(), lengths, each, 1000) for each in ({}, own))
    assert labelled == plain


def test_the_tenants_own_application_is_ignored_beside_the_operators() -> None:
    policy = WeightedServiceCounter(applications=Applications({"a": "assistant"}))
    for number, app in enumerate(["", "mine", "assistant"]):
        policy.enqueue(QueueRequest(f"r{number}", "a", 1000, app=app, stage=number))
        policy.admit(f"r{number}")
        policy.finish(f"r{number}")
    assert policy._expectations.of(("assistant", None)) == RequestLengths(1000, 0, 0)
    assert [*policy._expectations._means] == [("assistant", None)]
