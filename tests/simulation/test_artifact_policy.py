"""The charges of the VTC artifact's server, where they differ from the paper's."""

from __future__ import annotations

import pytest

from dispatcher.policies.service import WEIGHTED_TOKENS
from gpu_worker.policies.fairness.interface import QueueRequest
from headgate.evidence.vtc.artifact_policy import ArtifactPolicy, PreciseProfile


def add(policy: ArtifactPolicy, tenant: str, number: int = 0, *, prompt: int = 10, output: int = 5) -> str:
    request_id = f"{tenant}{number}"
    policy.enqueue(QueueRequest(request_id, tenant, prompt, 1.0, output))
    return request_id


def serve(policy: ArtifactPolicy, request_id: str, output: int) -> None:
    policy.admit(request_id)
    policy.on_generated(request_id, 1)
    policy.on_decoded(output - 1)
    policy.finish(request_id)


def test_the_last_output_token_is_never_charged_and_the_added_tokens_are() -> None:
    policy = ArtifactPolicy(WEIGHTED_TOKENS, extra_tokens=1, charges_twice=False)
    serve(policy, add(policy, "a"), 5)
    assert policy.counter("a") == 11 + 2 * 4


def test_an_end_charges_every_request_of_its_step_once_more_whatever_else_ends_with_it() -> None:
    policy = ArtifactPolicy(WEIGHTED_TOKENS, extra_tokens=0)
    for request_id in [add(policy, tenant) for tenant in "abc"]:
        policy.admit(request_id)
        policy.on_generated(request_id, 1)
    policy.on_decoded(4)
    policy.finish("a0")
    policy.finish("b0")
    assert [policy.counter(tenant) for tenant in "abc"] == [10 + 2 * 4 + 2] * 3


def test_an_end_with_the_prefill_charges_its_mini_batch_only() -> None:
    policy = ArtifactPolicy(WEIGHTED_TOKENS, extra_tokens=0)
    policy.admit(add(policy, "old"))
    policy.on_generated("old0", 1)
    policy.on_decoded(2)
    for request_id in (add(policy, "short", output=1), add(policy, "new")):
        policy.admit(request_id)
        policy.on_generated(request_id, 1)
    policy.finish("short0")
    assert (policy.counter("old"), policy.counter("short"), policy.counter("new")) == (14, 12, 12)


def test_a_tenant_is_lifted_to_waiting_tenants_and_never_to_the_last_that_left() -> None:
    policy = ArtifactPolicy(WEIGHTED_TOKENS, extra_tokens=0)
    serve(policy, add(policy, "a"), 5)
    add(policy, "b")
    assert policy.counter("b") == 0
    assert policy.peek() is not None
    serve(policy, "b0", 50)
    add(policy, "a", 1)
    add(policy, "c")
    assert policy.counter("c") == policy.counter("a") > 0
    lcf = ArtifactPolicy(WEIGHTED_TOKENS, extra_tokens=0, lifts=False)
    serve(lcf, add(lcf, "a"), 5)
    add(lcf, "a", 1)
    add(lcf, "b")
    assert lcf.counter("b") == 0


def test_of_equal_counters_the_tenant_that_came_first_is_next() -> None:
    policy = ArtifactPolicy(WEIGHTED_TOKENS, extra_tokens=0)
    for tenant in "zab":
        add(policy, tenant)
    head = policy.peek()
    assert head is not None
    assert head.tenant == "z"


def test_a_prediction_keeps_four_fifths_of_the_last_one_and_its_error_is_given_back() -> None:
    policy = ArtifactPolicy(WEIGHTED_TOKENS, extra_tokens=0, charges_twice=False, predict=lambda _, last: last)
    serve(policy, add(policy, "a", 0), 100)
    assert policy.counter("a") == 10 + 2 * 99
    serve(policy, add(policy, "a", 1), 50)
    assert policy.counter("a") == 10 + 2 * 99 + 10 + 2 * 50
    policy.admit(add(policy, "a", 2))
    assert policy.counter("a") == 10 + 2 * 99 + 10 + 2 * 50 + 10 + 2 * 90


def test_the_precise_profile_is_the_printed_one_with_more_digits() -> None:
    assert PreciseProfile()(100, 200) == pytest.approx(
        2.1 * 100 + 200 + 0.04 * 100 * 200 + 0.032 * 200**2 + 11.46, rel=0.01
    )
