"""Shares that change under load, tenants that are deleted and created again, and clocks that are wrong."""

from __future__ import annotations

import pytest

from dispatcher.model.commands import Over, Tick
from dispatcher.model.facts import Entry, TenantSet
from dispatcher.shard.shard import Shard
from tests.support.world.lone_shard import T0, LoneShard, report
from tests.support.world.processes import accept


def served(shard: LoneShard, running: str, sent: dict[str, str], most: int) -> list[str]:
    """End one call after the other. Return the tenants of the first ones dispatched."""
    return [sent[name] for name in shard.drain(running) if name in sent][:most]


def test_a_share_changes_with_the_next_call_that_carries_it() -> None:
    shard = LoneShard()
    blocker = shard.call("blocker")
    sent = {shard.call(tenant): tenant for _ in range(60) for tenant in "ab"}
    sent[shard.call("a", version=2, weight=3.0)] = "a"
    first = served(shard, blocker, sent, 40)
    assert first.count("a") == pytest.approx(30, abs=1)


def test_an_older_version_from_a_slow_cache_changes_nothing() -> None:
    shard = LoneShard()
    shard.call("a", version=5, weight=3.0)
    shard.call("a", version=4, weight=9.0)
    assert not any(isinstance(fact, TenantSet) for fact in shard.facts)
    assert shard.shard.state.tenants["a"].config[:2] == (5, 3.0)


def test_a_tenant_deleted_and_created_again_while_its_work_runs() -> None:
    shard = LoneShard(None, report("w", 2))
    old = shard.call("a", version=3, weight=1.0, tier="background")
    waits = [shard.call("a", version=3) for _ in range(2)]
    again = shard.call("a", version=4, weight=2.0, tier="premium", waiting_max=1_000)
    tenant = shard.shard.state.tenants["a"]
    assert (tenant.config.version, tenant.config.weight, tenant.config.tier) == (4, 2.0, "premium")
    assert shard.end(old, 7) == [waits[1]]
    assert shard.status(old) == Over(old, 1, "done", 7, 0)
    assert (tenant.running, tenant.waiting, tenant.spent) == (2, 1, 7.0)
    assert shard.drain(waits[0]) == [again]


def test_a_clock_that_runs_backward_stands_still() -> None:
    shard = LoneShard()
    shard.call("blocker")
    name = shard.call("a", wait_s=10.0)
    shard.do(Tick(), T0 - 3600.0)
    assert shard.shard.at == T0
    assert shard.worker_of(name) == ""
    assert shard.end("p-1") == [name]
    assert shard.shard.state.calls[name].dispatched_at == T0


def test_after_an_hour_ahead_shares_stay_right() -> None:
    """The time of the log cannot fall: it stands still for an hour, and with it the guarantees, not the sharing."""
    shard = LoneShard()
    blocker = shard.call("blocker")
    shard.do(Tick(), T0 + 3600.0)
    shard.call("c")
    shard.now = T0
    sent = {shard.call(tenant, weight=weight): tenant for _ in range(60) for tenant, weight in (("a", 1.0), ("b", 3.0))}
    assert shard.shard.at == T0 + 3600.0
    assert served(shard, blocker, sent, 40).count("b") == pytest.approx(30, abs=1)


@pytest.mark.parametrize("wrong", [float("inf"), float("nan")])
def test_a_number_that_is_none_never_reaches_the_log(wrong: float) -> None:
    shard = Shard()
    shard.decide([report()], T0)
    shard.confirm(Entry(0, T0, "w", "", 0, (shard.fleet()[0],)))
    with pytest.raises(ValueError, match=r"a cost is between 0 and 1e[+]12"):
        shard.decide([accept("p-1", "p", T0, cost=wrong)], T0)
    shard.rollback()
    assert shard.state.calls == {}


def test_a_tenant_of_a_lost_decision_leaves_nothing_behind() -> None:
    shard = LoneShard()
    blocker = shard.call("blocker")
    refused = accept("p-zz", "p", T0, "never", rate_per_s=5.0, waiting_max=0)
    _, facts = shard.shard.decide([refused], T0)
    assert [type(fact) for fact in facts] == [TenantSet]
    shard.shard.rollback()
    shard.now = T0 + 100.0  # all idle tenants are looked at in this time
    shard.end(blocker, 1)
    assert "never" not in shard.shard.state.tenants
