"""What makes a worker rest: failures of several causes, never the requests of one tenant."""

from __future__ import annotations

import pytest

from dispatcher.model.commands import Return, Tick
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.snapshot import dump, load
from dispatcher.shard.state.records import FAILED_MOST, RECENT, next_causes
from tests.support.world.lone_shard import LoneShard, report


def state_of(shard: LoneShard, worker: str = "w") -> str:
    return shard.shard.state.workers[worker].config.state


def burst(shard: LoneShard, *tenants: str, reason: str = "failed") -> None:
    """Let one call of each tenant fail, without a success between them."""
    for name in [shard.call(tenant) for tenant in tenants]:
        shard.give_back(name, reason)


@pytest.mark.parametrize("tenants", [1, FAILED_MOST - 1])
def test_the_requests_of_few_tenants_rest_no_worker(tenants: int) -> None:
    shard = LoneShard(None, report("w", 64))
    burst(shard, *[f"t{number % tenants}" for number in range(3 * RECENT)])
    assert state_of(shard) == "serving"
    assert shard.worker_of(shard.call("neighbour")) == "w"


def test_failures_of_several_tenants_rest_it() -> None:
    shard = LoneShard(None, report("w", 64))
    burst(shard, *[f"t{number}" for number in range(FAILED_MOST)])
    assert state_of(shard) == "resting"


def test_a_worker_that_refuses_is_not_failing() -> None:
    """Its engine is overloaded, or it drains: it says so itself."""
    shard = LoneShard(None, report("w", 64))
    burst(shard, *[f"t{number}" for number in range(3 * RECENT)], reason="refused")
    assert state_of(shard) == "serving"


@pytest.mark.parametrize("reason", ["unreachable", "lost"])
def test_what_no_request_causes_counts_for_one_tenant_too(reason: str) -> None:
    shard = LoneShard(None, report("w", 64))
    burst(shard, *["a"] * FAILED_MOST, reason=reason)
    assert state_of(shard) == "resting"


def test_causes_of_long_ago_are_forgotten() -> None:
    causes = next_causes((), "tenant a")
    for _ in range(RECENT - 1):
        causes = next_causes(causes, "")
    assert causes == ("",) * (RECENT - 1) + ("tenant a",)
    assert next_causes(causes, "") == ()


def test_causes_are_in_the_snapshot_and_undone_by_a_rollback() -> None:
    shard = LoneShard(None, report("w", 64))
    burst(shard, "a", "b")
    copy = load(dump(shard.shard), ShardSettings()).state.workers["w"]
    before = shard.shard.state.workers["w"].causes
    assert copy.causes == before == ("tenant b", "tenant a")
    name = shard.call("c")
    shard.shard.decide([Return(name, shard.shard.state.calls[name].attempt, "failed", "w")], shard.now)
    assert shard.shard.state.workers["w"].causes[0] == "tenant c"
    shard.shard.rollback()
    assert shard.shard.state.workers["w"].causes == before


def test_a_rest_forgets_them() -> None:
    shard = LoneShard(None, report("w", 64))
    burst(shard, *[f"t{number}" for number in range(FAILED_MOST)])
    shard.do(Tick(), shard.now + ShardSettings().rest_s)
    assert (state_of(shard), shard.shard.state.workers["w"].causes) == ("serving", ())
