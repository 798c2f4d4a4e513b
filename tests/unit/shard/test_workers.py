"""Workers that fail: an error affects one call, only an error rate takes a worker out of service, and briefly."""

from __future__ import annotations

from math import inf

import pytest

from dispatcher.model.commands import Gone, Leave, Over, Retire, Silent, Tick, Waiting
from dispatcher.model.kept import ATTEMPTS_MAX
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.state.records import FAILED_MOST, RECENT, next_causes
from dispatcher.shard.workers import RETIRE_S
from tests.support.world.lone_shard import MODEL, LoneShard, report

REST_S = ShardSettings().rest_s


def state(shard: LoneShard, worker: str) -> str:
    return shard.shard.state.workers[worker].config.state


def failing(shard: LoneShard, worker: str, times: int) -> None:
    """Let so many calls, each of a tenant of its own, fail on the worker."""
    for number in range(times):
        name = shard.call(f"t{number}")
        assert shard.worker_of(name) == worker
        shard.give_back(name, "failed")
        if shard.worker_of(name):
            shard.end(name)


def test_one_failure_takes_no_worker_out_of_service() -> None:
    shard = LoneShard(None, report("w", 4))
    failing(shard, "w", FAILED_MOST - 1)
    assert state(shard, "w") == "serving"


def test_an_error_rate_rests_a_worker_for_all_tenants_and_for_a_stated_time() -> None:
    shard = LoneShard(None, report("w", 8))
    names = [shard.call(f"t{number}") for number in range(FAILED_MOST)]
    for name in names:
        shard.give_back(name, "failed")
    assert state(shard, "w") == "resting"
    late = shard.call("another tenant")
    assert isinstance(shard.status(late), Waiting)
    assert shard.shard.next_tick() == shard.now + REST_S
    shard.do(Tick(), shard.now + REST_S - 0.01)
    assert isinstance(shard.status(late), Waiting)
    shard.do(report("w", 8))  # its reports do not end the rest
    assert isinstance(shard.status(late), Waiting)
    shard.do(Tick(), shard.now + 0.01)
    assert shard.worker_of(late) == "w"


def test_failures_of_long_ago_are_forgotten() -> None:
    shard = LoneShard(None, report("w", 4))
    for _ in range(4):
        failing(shard, "w", 1)
        for _ in range(RECENT):
            shard.end(shard.call("well"))
    assert state(shard, "w") == "serving"


def test_other_workers_take_the_calls_of_one_that_rests() -> None:
    shard = LoneShard(None, report("bad", 8))
    names = [shard.call(f"t{number}") for number in range(FAILED_MOST)]
    shard.do(report("good", 8))
    for name in names:
        shard.give_back(name, "failed")
    assert {shard.worker_of(name) for name in names} == {"good"}
    assert [shard.worker_of(shard.call(f"n{number}")) for number in range(4)] == ["good"] * 4


def test_a_call_has_a_bounded_number_of_attempts() -> None:
    shard = LoneShard(None, report("w", 1))
    name = shard.call("a", cost=5.0)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        assert shard.shard.state.calls[name].attempt == attempt
        shard.give_back(name, "failed")
    over = shard.status(name)
    assert over == Over(name, ATTEMPTS_MAX, "failed")
    assert shard.shard.state.tenants["a"].clocks[1] == 0.0  # refunded
    assert shard.shard.usage_rows()[0].service == 0.0


def test_offers_that_were_not_begun_or_declined_are_no_attempts() -> None:
    shard = LoneShard(None, report("w", 1))
    name = shard.call("a")
    for _ in range(3 * ATTEMPTS_MAX):
        shard.give_back(name, "declined")
        assert shard.worker_of(name) == "w"
    assert state(shard, "w") == "serving"


def test_a_silent_worker_gets_no_new_call_and_keeps_its_own() -> None:
    shard = LoneShard(None, report("w", 2))
    runs = shard.call("a")
    shard.do(Silent("w", True))
    waits = shard.call("a")
    assert (shard.worker_of(runs), shard.worker_of(waits)) == ("w", "")
    assert shard.end(runs) == []
    shard.do(report("w", 2))
    assert shard.worker_of(waits) == "w"


def test_the_calls_of_a_worker_that_left_go_to_others_in_their_old_order() -> None:
    shard = LoneShard(None, report("w", 2))
    first, second, third = (shard.call("a") for _ in range(3))
    shard.do(Leave("w"))
    assert [shard.worker_of(name) for name in (first, second, third)] == ["", "", ""]
    shard.do(report("heir", 1))
    assert shard.worker_of(first) == "heir"
    assert shard.drain(first) == [second, third]


def test_a_worker_that_reports_again_is_not_gone() -> None:
    """Its report was in an entry that the leader had not read when it gave the worker up."""
    shard = LoneShard(None, report("w", 2))
    runs = shard.call("a")
    shard.do(Gone("w", True))
    assert shard.worker_of(runs) == "w"
    shard.do(Silent("w", True))
    shard.do(Gone("w", True))
    assert not shard.shard.state.workers


def test_nothing_is_kept_of_a_worker_that_left() -> None:
    """Each start of a worker has an id of its own."""
    shard = LoneShard(None, report("w"))
    for number in range(3):
        shard.do(report(f"restarted-{number}", kv_use=0.5))
        shard.do(Leave(f"restarted-{number}"))
    assert list(shard.shard.state.kv_use) == list(shard.shard.state.workers) == ["w"]


def test_a_worker_that_leaves_while_it_retires_asks_for_no_tick() -> None:
    shard = LoneShard(None, report("w"), report("other"))
    shard.do(Retire("w"))
    shard.do(Leave("w"))
    assert shard.shard.next_tick() == inf


def test_a_worker_without_a_measured_capacity_counts_as_the_average_of_the_others() -> None:
    """Otherwise guarantees shrink, and Retry-After grows, until every worker of a new fleet was saturated once."""
    reports = [report(f"w{number}", capacity_per_s=1000.0 if number < 2 else 0.0) for number in range(8)]
    state = LoneShard(None, *reports, report("x", model="other", capacity_per_s=0.0)).shard.state
    assert state.slots.capacity_per_s(MODEL) == 8000.0
    assert state.slots.capacity_per_s("other") == 0.0
    assert state.slots.capacity_per_s() == 9000.0


def test_guarantees_that_the_fleet_can_keep_are_not_scaled_while_a_part_of_it_is_measured() -> None:
    reports = [report(f"w{number}", capacity_per_s=0.0 if number else 1000.0) for number in range(8)]
    shard = LoneShard(None, *reports)
    shard.call("a", rate_per_s=4000.0, burst=4000.0)
    assert shard.dispatched[-1].rate_per_s == 4000.0


# ── What makes a worker rest: failures of several causes, never the requests of one tenant ──────────────────────────


def burst(shard: LoneShard, *tenants: str, reason: str = "failed") -> None:
    """Let one call of each tenant fail, without a success between them."""
    for name in [shard.call(tenant) for tenant in tenants]:
        shard.give_back(name, reason)


@pytest.mark.parametrize("tenants", [1, FAILED_MOST - 1])
def test_the_requests_of_few_tenants_rest_no_worker(tenants: int) -> None:
    shard = LoneShard(None, report("w", 64))
    burst(shard, *[f"t{number % tenants}" for number in range(3 * RECENT)])
    assert state(shard, "w") == "serving"
    assert shard.worker_of(shard.call("neighbour")) == "w"


def test_a_worker_that_refuses_is_not_failing() -> None:
    """Its engine is overloaded, or it drains: it says so itself."""
    shard = LoneShard(None, report("w", 64))
    burst(shard, *[f"t{number}" for number in range(3 * RECENT)], reason="refused")
    assert state(shard, "w") == "serving"


@pytest.mark.parametrize("reason", ["unreachable", "lost"])
def test_what_no_request_causes_counts_for_one_tenant_too(reason: str) -> None:
    shard = LoneShard(None, report("w", 64))
    burst(shard, *["a"] * FAILED_MOST, reason=reason)
    assert state(shard, "w") == "resting"


def test_a_rest_forgets_them() -> None:
    shard = LoneShard(None, report("w", 64))
    burst(shard, *[f"t{number}" for number in range(FAILED_MOST)])
    shard.do(Tick(), shard.now + REST_S)
    assert (state(shard, "w"), shard.shard.state.workers["w"].causes) == ("serving", ())


# ── Retirement ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_retiring_worker_keeps_its_calls_and_gets_no_others() -> None:
    shard = LoneShard(None, report("a", 2), report("b", 2))
    first = [shard.call(f"t{number}") for number in range(2)]
    assert sorted(map(shard.worker_of, first)) == ["a", "b"]
    shard.do(Retire("a"))
    later = [shard.call(f"t{number}") for number in range(2, 4)]
    assert [shard.worker_of(name) for name in later] == ["b", ""]
    shard.do(report("a", 2))  # its heartbeats do not end the retirement
    assert (state(shard, "a"), shard.worker_of(later[1])) == ("retiring", "")
    shard.end(first[0])
    shard.end(first[1])
    assert shard.worker_of(later[1]) == "b"


def test_a_retirement_ends_by_itself_or_by_a_command_or_is_renewed() -> None:
    shard = LoneShard(None, report("a"), report("b"))
    shard.do(Retire("a"))
    assert shard.shard.next_tick() == shard.now + RETIRE_S
    shard.do(Retire("a"), shard.now + RETIRE_S - 1)
    shard.do(Tick(), shard.now + RETIRE_S - 1)
    assert state(shard, "a") == "retiring"
    waiting = [shard.call("t"), shard.call("t")]
    assert [shard.worker_of(name) for name in waiting] == ["b", ""]
    shard.do(Tick(), shard.now + 1)
    assert (state(shard, "a"), shard.worker_of(waiting[1])) == ("serving", "a")
    shard.do(Retire("b"))
    shard.do(Retire("b", is_over=True))
    assert state(shard, "b") == "serving"


def test_a_draining_silent_or_unknown_worker_does_not_retire() -> None:
    shard = LoneShard(None, report("a"), report("b"), report("c")._replace(draining=True))
    shard.do(Silent("b", True))
    for worker in ("b", "c", "unknown"):
        shard.do(Retire(worker))
        shard.do(Retire(worker, is_over=True))
    assert [state(shard, worker) for worker in "abc"] == ["serving", "silent", "draining"]


def test_a_retiring_worker_drains_when_it_is_stopped() -> None:
    shard = LoneShard(None, report("a"))
    shard.do(Retire("a"))
    shard.do(report("a")._replace(draining=True))
    assert state(shard, "a") == "draining"
    shard.do(Retire("a", is_over=True))
    assert state(shard, "a") == "draining"


def test_causes_of_long_ago_are_forgotten() -> None:
    causes = next_causes((), "tenant a")
    for _ in range(RECENT - 1):
        causes = next_causes(causes, "")
    assert causes == ("",) * (RECENT - 1) + ("tenant a",)
    assert next_causes(causes, "") == ()
