"""Processes that hold callers: silent ones keep their places, dead ones free them at once."""

from __future__ import annotations

from dispatcher.model.commands import End, Gone, Offer, Over, Present, Silent, Tick, Waiting
from dispatcher.shard.settings import ShardSettings
from tests.support.world.lone_shard import LoneShard, report


def gate(slots: int = 1) -> LoneShard:
    shard = LoneShard(None, report("w", slots))
    shard.call("blocker", process="q")
    return shard


def outcome_of(shard: LoneShard, name: str) -> str:
    over = shard.status(name)
    return over.outcome if isinstance(over, Over) else type(over).__name__


def test_a_silent_process_gets_no_offers_and_keeps_its_place() -> None:
    shard = gate()
    paused = [shard.call("a", process="p") for _ in range(2)]
    other = shard.call("a", process="q")
    shard.do(Silent("p", False))
    assert shard.end("q-1") == [other]
    assert [type(shard.status(name)) for name in paused] == [Waiting, Waiting]
    last = shard.call("a", process="q")
    shard.do(Present("p"))
    assert shard.drain(other) == [*paused, last]


def test_a_free_slot_goes_to_a_resumed_process_at_once() -> None:
    shard = gate()
    name = shard.call("a", process="p")
    shard.do(Silent("p", False))
    assert shard.end("q-1") == []
    shard.do(Present("p"))
    assert isinstance(shard.status(name), Offer)


def test_an_offer_that_was_not_begun_suspends_its_process() -> None:
    shard = gate()
    first, second = (shard.call("a", process="p") for _ in range(2))
    other = shard.call("b", process="q")
    assert shard.end("q-1") == [first]
    shard.give_back(first, "not_begun")
    assert shard.worker_of(other) == "w"
    assert [type(shard.status(name)) for name in (first, second)] == [Waiting, Waiting]
    shard.do(Present("p"))
    assert shard.drain(other) == [first, second]


def test_the_slot_of_a_late_offer_that_was_not_begun_goes_to_no_call_of_its_process() -> None:
    shard = LoneShard(ShardSettings(order="ratio"), report("w", 1))  # the end of an attempt itself gives its slot away
    waits = shard.call("a", process="p", rate_per_s=1.0)
    shard.now += 10.0
    late = shard.call("a", process="p", rate_per_s=1.0, wait_s=5.0)
    assert shard.worker_of(late) == "w"
    shard.now += 10.0
    shard.give_back(late, "not_begun")
    assert outcome_of(shard, late) == "expired"
    assert shard.worker_of(waits) == ""


def test_a_dead_process_leaves_at_once_and_only_durable_calls_stay() -> None:
    shard = gate()
    plain = [shard.call("a", process="p") for _ in range(3)]
    durable = shard.call("a", process="p", durable=True)
    other = shard.call("b", process="q")
    shard.do(Silent("p", False))
    shard.do(Gone("p", False))
    assert [outcome_of(shard, name) for name in plain] == ["cancelled"] * 3
    assert shard.shard.state.calls.keys() == {"q-1", durable, other}
    assert sorted(shard.drain("q-1")) == sorted([durable, other])


def test_a_process_that_is_present_again_is_not_gone() -> None:
    shard = gate()
    waits = [shard.call("a", process="p") for _ in range(2)][1]
    shard.do(Silent("p", False))
    shard.do(Present("p"))
    shard.do(Gone("p", False))
    assert type(shard.status(waits)) is Waiting


def test_a_running_call_of_a_dead_process_ends_when_its_worker_says_so() -> None:
    shard = gate(slots=2)
    runs = shard.call("a", process="p")
    shard.do(Silent("p", False))
    shard.do(Gone("p", False))
    assert shard.worker_of(runs) == "w"
    shard.give_back(runs, "not_begun")
    assert outcome_of(shard, runs) == "cancelled"


def test_a_call_that_ended_stays_ended_when_its_process_is_repeated_as_gone() -> None:
    shard = gate(slots=2)
    runs = shard.call("a", process="p")
    shard.do(End(runs, 1, "done", 3, 4))
    shard.do(Silent("p", False))
    for _ in range(2):
        shard.do(Gone("p", False))
    assert shard.status(runs) == Over(runs, 1, "done", 3, 4)


def test_silence_does_not_suspend_what_expires() -> None:
    shard = gate()
    name = shard.call("a", process="p", wait_s=5.0)
    shard.do(Silent("p", False))
    due = shard.shard.next_tick()
    assert due == shard.now + 5.0
    shard.do(Tick(), due)
    assert outcome_of(shard, name) == "expired"
