"""The pure rules of a worker's health: slots after refusals, remembered calls, held errors, kinds of errors."""

from __future__ import annotations

import pytest

from gpu_worker.engines.interface import EngineError, Evicted, PromptTooLong, RefusedByPolicy
from gpu_worker.service.agent import AgentSettings
from gpu_worker.service.health.engine_health import FailedCall, FailedCalls
from gpu_worker.service.health.failures import FailureKind, kind_of, overload_status
from gpu_worker.service.health.limits import (
    FORGET_S,
    FREE,
    FULL_S,
    HOLD_MAX_S,
    HOLD_S,
    TENANTS_MAX,
    FailingTenants,
    SlotLimit,
)

SLOTS = 16
FAILED = FailedCall(False, 500, "generation_failed", "it failed")


def test_an_engine_that_refuses_nothing_has_all_slots() -> None:
    assert SlotLimit(SLOTS).open(0.0) == SLOTS


def test_the_slots_shrink_to_what_the_engine_has_and_grow_back_in_a_line() -> None:
    limit = SlotLimit(SLOTS)
    limit.shrink(4, 100.0)
    opens = [limit.open(100.0 + second) for second in range(int(FULL_S) + 1)]
    assert opens[:2] == [4, 4]
    assert opens == sorted(opens)
    assert opens[-2:] == [14, SLOTS]


def test_all_slots_are_reported_within_ten_seconds_of_the_last_refusal() -> None:
    """The bar of the issue: the growth and the longest pause between two heartbeats."""
    assert FULL_S + 1.2 * AgentSettings().heartbeat_s < 10.0


def test_a_later_refusal_adds_no_slot_and_holds_the_present_ones() -> None:
    limit = SlotLimit(SLOTS)
    limit.shrink(4, 0.0)
    later = (HOLD_S + FULL_S) / 2
    grown = limit.open(later)
    limit.shrink(SLOTS, later)
    assert limit.open(later) == limit.open(later + HOLD_S) == grown > 4


@pytest.mark.parametrize("slots", [1, 2, SLOTS])
def test_one_slot_stays_or_nobody_would_learn_that_the_engine_is_back(slots: int) -> None:
    limit = SlotLimit(slots)
    limit.shrink(0, 0.0)
    assert limit.open(0.0) == 1
    assert limit.open(FULL_S) == slots


def test_only_so_many_failed_calls_are_remembered() -> None:
    calls = FailedCalls(calls_max=2)
    for name in ("a", "b", "a", "c"):
        calls.note(name, FAILED)
    assert [calls.find(name) is not None for name in "abc"] == [True, False, True]
    calls.forget("a")
    assert calls.find("a") is None


def test_the_first_errors_of_a_tenant_are_not_held() -> None:
    tenants = FailingTenants()
    for _ in range(FREE):
        tenants.on_failure("a", 0.0)
        assert tenants.hold_s("a", 0.0) == 0.0


def test_errors_in_a_row_are_held_longer_up_to_a_bound_and_only_for_their_tenant() -> None:
    tenants = FailingTenants()
    held = []
    for _ in range(100):
        tenants.on_failure("a", 0.0)
        held.append(tenants.hold_s("a", 0.0))
    assert held == sorted(held)
    assert held[-1] == HOLD_MAX_S
    assert tenants.hold_s("b", 0.0) == 0.0


def test_a_success_or_some_time_ends_the_row() -> None:
    tenants = FailingTenants()
    for _ in range(2 * FREE):
        tenants.on_failure("a", 0.0)
    assert tenants.hold_s("a", FORGET_S) == 0.0
    tenants.on_failure("a", FORGET_S)
    assert tenants.hold_s("a", FORGET_S) == 0.0
    for _ in range(2 * FREE):
        tenants.on_failure("a", FORGET_S)
    tenants.on_answer("a")
    assert tenants.hold_s("a", FORGET_S) == 0.0


def test_only_so_many_failing_tenants_are_remembered() -> None:
    tenants = FailingTenants()
    for number in range(2 * TENANTS_MAX):
        for _ in range(2 * FREE):
            tenants.on_failure(f"t{number}", 0.0)
    assert tenants.hold_s("t0", 0.0) == 0.0
    assert tenants.hold_s(f"t{2 * TENANTS_MAX - 1}", 0.0) > 0.0


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PromptTooLong("long"), FailureKind.REQUEST),
        (EngineError("invalid_request", "no"), FailureKind.REQUEST),
        (RefusedByPolicy(), FailureKind.REQUEST),
        (Evicted(), FailureKind.REQUEST),
        (EngineError("engine_overloaded", "busy"), FailureKind.OVERLOAD),
        (EngineError("generation_failed", "busy", status=429), FailureKind.OVERLOAD),
        (EngineError("generation_failed", "busy", status=503), FailureKind.OVERLOAD),
        (EngineError("generation_failed", "busy", status=529), FailureKind.OVERLOAD),
        (EngineError("generation_failed", "broken", status=500), FailureKind.FAILURE),
        (EngineError("generation_failed", "key", status=401), FailureKind.FAILURE),
        (EngineError("engine_failed", "bug"), FailureKind.FAILURE),
        (EngineError("engine_restarted", "again"), FailureKind.REPLACED),
        (EngineError("engine_stopped", "gone"), FailureKind.REPLACED),
    ],
)
def test_each_error_has_a_kind(error: EngineError, kind: FailureKind) -> None:
    assert kind_of(error) is kind


@pytest.mark.parametrize(("status", "callers"), [(429, 429), (503, 503), (529, 503), (None, 503)])
def test_the_caller_gets_the_status_of_the_overload(status: int | None, callers: int) -> None:
    assert overload_status(EngineError("engine_overloaded", "busy", status=status)) == callers
