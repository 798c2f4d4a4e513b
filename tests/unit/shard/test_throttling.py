"""FairServe's throttling at the gate: only while the fleet is saturated, never in an interaction, two limits."""

from __future__ import annotations

from dispatcher.model.commands import Refused
from dispatcher.policies.throttling import ThrottleLimits
from dispatcher.shard.settings import SATURATED, ShardSettings
from tests.support.world.lone_shard import LoneShard, report

LIMITS = ThrottleLimits(user=2, app=5, apps={"small": 1}, window_s=30.0)
FULL = report("w", 100, kv_use=SATURATED)


def gate(*workers: object) -> LoneShard:
    return LoneShard(ShardSettings(throttling=LIMITS), *workers or (FULL,))  # type: ignore[arg-type]


def code(shard: LoneShard, tenant: str, *, app: str = "", interaction: str = "") -> str:
    _, outcome = shard.accept(tenant, app=app, interaction=interaction)
    return outcome.code if isinstance(outcome, Refused) else ""


def test_without_saturation_no_limit_holds() -> None:
    shard = gate(report("w", 100, kv_use=SATURATED - 0.01))
    assert [code(shard, "a") for _ in range(20)] == [""] * 20


def test_a_limit_begins_with_saturation_and_counts_what_was_admitted_before() -> None:
    shard = gate(report("w", 100, kv_use=0.1))
    assert [code(shard, "a") for _ in range(2)] == ["", ""]
    shard.do(FULL)
    assert [code(shard, "a"), code(shard, "b")] == ["throttled_user", ""]
    shard.do(report("w", 100, kv_use=0.1))
    assert code(shard, "a") == ""


def test_the_fleet_is_saturated_only_if_every_serving_worker_is() -> None:
    shard = gate(FULL, report("other", 100, kv_use=0.2))
    assert [code(shard, "a") for _ in range(5)] == [""] * 5
    shard.do(report("other", 100, kv_use=1.0))
    assert code(shard, "a") == "throttled_user"


def test_a_limit_is_free_again_after_the_window() -> None:
    shard = gate()
    shard.call("a")
    shard.now += 10.0
    shard.call("a")
    outcome = shard.refused("a")
    assert outcome.retry_after_s == 20.0
    assert "tenant is at its limit of 2" in outcome.message
    shard.now += 20.0
    assert [code(shard, "a"), code(shard, "a")] == ["", "throttled_user"]


def test_an_application_has_one_limit_over_all_tenants() -> None:
    shard = gate()
    assert [code(shard, tenant, app="chat") for tenant in "abcdef"] == [""] * 5 + ["throttled_app"]
    assert [code(shard, tenant, app="small") for tenant in "gh"] == ["", "throttled_app"]
    assert code(shard, "g", app="other") == ""


def test_an_interaction_that_has_begun_is_never_cut() -> None:
    shard = gate()
    assert [code(shard, "a", interaction="i") for _ in range(10)] == [""] * 10
    assert code(shard, "a", interaction="j") == "throttled_user"
    assert code(shard, "b", app="other", interaction="i") == ""


def test_a_refused_call_leaves_no_trace() -> None:
    """A client that retries is not refused longer for it, and its interaction has not begun."""
    shard = gate()
    shard.call("a")
    shard.call("a")
    for _ in range(50):
        shard.now += 0.5
        assert code(shard, "a", interaction="i") == "throttled_user"
        assert shard.facts == ()
    shard.now += 5.0
    assert code(shard, "a", interaction="i") == ""
