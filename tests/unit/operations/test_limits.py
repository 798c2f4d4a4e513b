"""Limits before the gate: what one tenant may hold of a process, and what is left for others."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dispatcher.model.answers import Collected
from dispatcher.model.errors import ConfigurationError, Refused
from dispatcher.operations.limits import Budget, Limits, LimitSettings, RecentRefusals, TokenBucket
from dispatcher.settings.config import load_config
from tests.support.world.memory_gate import Gate
from tests.support.world.story import asked, begun, followed
from tests.support.world.virtual_time import LoopClock


def refused(budget: Budget, tenant: str, amount: int = 1) -> Refused:
    with pytest.raises(Refused) as caught:
        budget.take(tenant, amount)
    return caught.value


def test_a_tenants_own_bound_is_named_with_a_time() -> None:
    budget = Budget("waiting_bytes", "bytes of waiting requests", 100, 1000)
    budget.take("a", 60)
    error = refused(budget, "a", 41)
    assert (error.status, error.code, error.retry_after_s) == (429, "waiting_bytes", 1.0)
    assert "60 bytes of waiting requests of this tenant" in error.message
    budget.take("a", 40)
    budget.take("b", 100)
    budget.give_back("a", 100)
    assert (budget.held("a"), budget.held("b"), budget.total) == (0, 100, 100)


def test_one_tenant_gets_half_of_a_process_and_a_newcomer_finds_room() -> None:
    budget = Budget("open_requests", "open requests", 1000, 100)
    taken = 0
    while True:
        try:
            budget.take("flood")
        except Refused:
            break
        taken += 1
    assert taken == 50
    for _ in range(25):
        budget.take("quiet")
    refused(budget, "quiet")
    refused(budget, "flood")
    assert budget.total == 75
    budget.take("third")


def test_a_refused_request_holds_nothing() -> None:
    limits = Limits(replace(LimitSettings(), waiting_tokens_max=10))
    with pytest.raises(Refused) as caught:
        limits.waiting_request("a", 5, 11)
    assert caught.value.code == "waiting_tokens"
    assert (limits.waiting_items.total, limits.waiting_bytes.total, limits.waiting_tokens.total) == (0, 0, 0)
    held = limits.waiting_request("a", 5, 10)
    held.release()
    held.release()
    assert limits.waiting_tokens.total == 0


def test_an_open_request_is_given_back_also_after_an_error() -> None:
    limits = Limits(replace(LimitSettings(), open_requests_max=1, same_key_max=1))
    with pytest.raises(ZeroDivisionError), limits.open_request("a"), limits.key_in_flight("a", "k"):
        1 / 0  # noqa: B018
    with limits.open_request("a"), limits.key_in_flight("a", "k"):
        with pytest.raises(Refused, match="open_requests"), limits.open_request("a"):
            pass
        with pytest.raises(Refused, match="same_key"), limits.key_in_flight("a", "k"):
            pass
        with limits.open_request("b"), limits.key_in_flight("b", "k"), limits.key_in_flight("a", "l"):
            pass
    assert (limits.requests.total, limits.keys.total) == (0, 0)


def test_limits_come_from_the_environment_and_are_validated() -> None:
    config = load_config({"HEADGATE_LIMITS": '{"open_requests_max": 7, "body_s": 2.5}'})
    assert (config.limits.open_requests_max, config.limits.body_s) == (7, 2.5)
    assert config.limits.send_s == LimitSettings().send_s
    assert load_config({}).limits == LimitSettings()


@pytest.mark.parametrize(
    "text",
    ['{"open_requests": 7}', '{"send_s": 0}', '{"same_key_max": -1}', '{"body_s": NaN}', '{"body_s": "x"}', "[]", "{"],
)
def test_bad_limits_are_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match="HEADGATE_LIMITS"):
        load_config({"HEADGATE_LIMITS": text})


async def test_a_bucket_allows_a_burst_and_a_rate(gate: Gate) -> None:
    bucket = TokenBucket(2.0, 3, LoopClock())
    assert [bucket.take() for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    await asyncio.sleep(0.5)
    assert (bucket.take(), bucket.take() > 0) == (0.0, True)
    await asyncio.sleep(100)
    assert [bool(bucket.take()) for _ in range(4)] == [False, False, False, True]


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"waiting_items_max": 2}, "waiting_items"),
        ({"waiting_bytes_max": 11}, "waiting_bytes"),
        ({"waiting_tokens_max": 17}, "waiting_tokens"),
    ],
)
async def test_waiting_requests_are_bounded_per_tenant_and_running_ones_are_not_among_them(
    gate: Gate, limits: dict[str, int], code: str
) -> None:
    gate.contexts.insert(0, gate.process(LimitSettings(**limits)))
    calls = [begun(gate, tenant) for tenant in ("a", "a", "a", "a", "a", "b")]  # each of 5 bytes, 8 tokens
    got = await asyncio.gather(*calls)
    errors = [one for one in got[:5] if isinstance(one, Refused)]
    assert [error.code for error in errors] == [code] * len(errors)
    assert 1 <= len(errors) <= 3
    assert isinstance(got[5], Collected)
    assert isinstance(await followed(gate, "a"), Collected), "and later there is room again"


async def test_a_request_above_a_limit_alone_is_refused_and_leaves_nothing(gate: Gate) -> None:
    gate.contexts.insert(0, gate.process(LimitSettings(waiting_bytes_max=10)))
    got = await followed(gate, "a", "k", request=asked("x" * 11))
    assert isinstance(got, Refused)
    assert await gate.store.find("a", "k") is None


WITHIN_S = 0.25
A, B = ("pool", "a"), ("pool", "b")


def test_a_recent_refusal_is_raised_again_for_its_queue_alone() -> None:
    refusals = RecentRefusals(WITHIN_S)
    refusals.check(A, 1.0)
    refusals.note(A, Refused("full", "queue_full", 3.0), 1.0)
    with pytest.raises(Refused, match="full") as raised:
        refusals.check(A, 1.0 + WITHIN_S - 0.01)
    assert (raised.value.code, raised.value.retry_after_s) == ("queue_full", 3.0)
    refusals.check(B, 1.0)
    refusals.check(A, 1.0 + WITHIN_S)


def test_a_tenant_is_refused_before_its_pool_is_known_only_if_all_its_queues_refuse() -> None:
    refusals, elsewhere = RecentRefusals(WITHIN_S), ("other", "a")
    refusals.note(A, Refused("full", "queue_full", 3.0), 1.0)
    refusals.check(elsewhere, 1.1)
    refusals.check_all((A, elsewhere), 1.1)
    refusals.note(elsewhere, Refused("full too", "queue_full", 3.0), 1.1)
    with pytest.raises(Refused, match="full"):
        refusals.check_all((A, elsewhere), 1.1)
    refusals.check_all((A, elsewhere), 1.0 + WITHIN_S)


def test_a_repeated_refusal_does_not_last_longer() -> None:
    refusals = RecentRefusals(WITHIN_S)
    refusals.note(A, Refused("full", "queue_full", 3.0), 1.0)
    with pytest.raises(Refused):
        refusals.check(A, 1.2)
    refusals.check(A, 1.3)


def test_old_refusals_are_forgotten() -> None:
    refusals = RecentRefusals(WITHIN_S)
    for number in range(100):
        refusals.note(("pool", f"tenant-{number}"), Refused("full", "queue_full", 1.0), 0.1 * number)
    refusals.note(("pool", "tenant-97"), Refused("full", "queue_full", 1.0), 0.1 * 100)
    assert len(refusals) == 3
