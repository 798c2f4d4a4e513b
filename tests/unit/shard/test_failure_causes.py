"""What makes a worker rest: failures of several causes, never the requests of one tenant."""

from __future__ import annotations

import pytest

from dispatcher.model.commands import Tick
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.state.records import FAILED_MOST, RECENT
from tests.support.gate.lone_shard import LoneShard, report


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


def test_a_rest_forgets_them() -> None:
    shard = LoneShard(None, report("w", 64))
    burst(shard, *[f"t{number}" for number in range(FAILED_MOST)])
    shard.do(Tick(), shard.now + ShardSettings().rest_s)
    assert (state_of(shard), shard.shard.state.workers["w"].causes) == ("serving", ())
