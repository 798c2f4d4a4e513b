"""Calls that no process holds, while no executor begins them: they keep their places and take no slots."""

from __future__ import annotations

from itertools import count

from dispatcher.model.commands import Accept, End, Gone, Offer, Over, Return, Silent, Tick, Waiting, call_id
from tests.support.world.lone_shard import T0, LoneShard, report
from tests.support.world.processes import accept

NUMBERS = count(1)


def hold(name: str, process: str, wait_s: float = 1e6) -> Accept:
    """Return the first Accept of an event call, or a repetition that makes the process its holder."""
    return accept(name, process, T0, "events", durable=True, cost=1.0, deadline_at=T0 + wait_s)


def event(shard: LoneShard, wait_s: float = 1e6) -> str:
    name = call_id("front", next(NUMBERS))
    shard.do(hold(name, "", wait_s))
    return name


def running(shard: LoneShard) -> set[str]:
    return {call.id for call in shard.shard.state.calls.values() if call.worker}


def gate_without_executors(slots: int = 2, calls: int = 10) -> tuple[LoneShard, list[str]]:
    """Return a gate after the first offers to executors were not begun, and the calls in their order of arrival."""
    shard = LoneShard(None, report("w", slots))
    names = [event(shard) for _ in range(calls)]
    for name in names[:slots]:
        shard.give_back(name, "not_begun")
    return shard, names


def test_calls_without_a_holder_take_no_more_slots_after_the_first_were_not_begun() -> None:
    shard, names = gate_without_executors()
    assert running(shard) == set()
    others = [shard.call("other", process="p") for _ in range(2)]
    assert running(shard) == set(others)
    shard.end(others[0])
    shard.do(Tick(), shard.now + 60.0)
    assert running(shard) == {others[1]}
    assert all(isinstance(shard.status(name), Waiting) for name in names)


def test_a_process_that_holds_a_durable_call_still_gets_offers() -> None:
    shard, _ = gate_without_executors()
    name = shard.call("events", process="p", durable=True)
    assert shard.worker_of(name) == "w"


def test_they_all_get_offers_again_in_their_order_when_an_executor_holds_one() -> None:
    shard, names = gate_without_executors()
    late = event(shard)
    assert running(shard) == set()
    shard.do(hold(names[5], "executor"))
    assert running(shard) == set(names[:2])
    order = [*names[:2]]
    for name in order:
        order += shard.end(name)
    assert order == [*names, late]


def test_a_process_that_lets_a_call_go_shows_nothing_of_executors() -> None:
    shard, _ = gate_without_executors()
    blockers = [shard.call("b", process="q") for _ in range(2)]
    name = shard.call("events", process="p", durable=True)
    shard.do(hold(name, ""))
    for blocker in blockers:
        shard.end(blocker)
    assert isinstance(shard.status(name), Waiting)
    assert running(shard) == set()
    shard.do(hold(name, "executor"))
    assert name in running(shard) or len(running(shard)) == 2


def test_the_durable_calls_of_a_dead_process_wait_with_them() -> None:
    shard, _ = gate_without_executors()
    shard.do(report("w", 0))
    name = shard.call("events", process="p", durable=True)
    shard.do(Silent("p", False))
    shard.do(Gone("p", False))
    shard.do(report("w", 2))
    assert running(shard) == set()
    assert isinstance(shard.status(name), Waiting)


def test_their_deadlines_end_them() -> None:
    shard = LoneShard(None, report("w", 1))
    first, second = event(shard, wait_s=50.0), event(shard, wait_s=50.0)
    shard.give_back(first, "not_begun")
    late = event(shard, wait_s=60.0)
    assert shard.shard.next_tick() == 1_000_050.0
    shard.do(Tick(), 1_000_050.0)
    assert [shard.status(name) for name in (first, second)] == [Over(first, 0, "expired"), Over(second, 0, "expired")]
    shard.do(Tick(), 1_000_060.0)
    assert shard.status(late) == Over(late, 0, "expired")


def test_a_call_that_an_executor_begins_late_runs_at_once() -> None:
    """The executor needed longer than the offer's time to start."""
    shard = LoneShard(None, report("w", 1))
    name = event(shard)
    shard.give_back(name, "not_begun")
    offer = shard.do(hold(name, "executor"))
    assert isinstance(offer, Offer)
    assert offer.attempt == 2
    assert isinstance(shard.do(End(name, 2, "done", 1, 1)), Over)


def test_an_answer_of_a_suspended_call_ends_it() -> None:
    shard, names = gate_without_executors()
    shard.do(End(names[0], 1, "done", 3, 4, kept=True))
    assert shard.status(names[0]) == Over(names[0], 1, "done", 3, 4)
    assert shard.shard.state.tenants["events"].suspended == len(names) - 1


def test_a_worker_that_fails_suspends_no_calls() -> None:
    shard = LoneShard(None, report("w", 1))
    first, second = event(shard), event(shard)
    shard.do(Return(first, 1, "lost", "w"))
    assert running(shard) == {first}
    assert isinstance(shard.status(second), Waiting)
