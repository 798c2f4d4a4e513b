"""The table is away: every kind of call gets 503 with a time within 2 s, and none of them runs afterwards."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.world.outage_world import LONG, Fault, OutageWorld

AWAY_S, ANSWERED_S, BACK_S = 6.0, 2.0, 10.0
READS = {"GET of a kept response", "list of files", "list of batches", "usage"}
"""The kinds that need no write: they may succeed while only writes fail."""


@pytest.mark.parametrize(
    ("gates", "fault"), [(0, "writes"), (0, "silent"), (1, "writes"), (1, "gone"), (3, "writes"), (3, "deaf")]
)
async def test_an_outage_is_a_503_with_a_time_within_two_seconds(gates: int, fault: Fault) -> None:
    world = OutageWorld(gates)
    await world.start()
    before = await world.arrivals(0.4, 0.1)
    began = world.world.clock.monotonic()
    world.break_table(fault)
    calls = await world.arrivals(AWAY_S)
    await asyncio.sleep(ANSWERED_S)
    found = world.began(AWAY_S, began)
    assert len(found) == len(calls)
    assert max(each.seconds for each in found) <= ANSWERED_S
    failed = [each for each in found if each.status != 200]
    assert {(each.status, each.code) for each in failed} == {(503, "store_unavailable")}
    assert {float(each.retry_after) for each in failed} == {1.0}
    if fault in ("gone", "silent"):
        assert len(failed) == len(found)
    assert {each.kind for each in found} - {each.kind for each in failed} <= READS
    place = len(world.workers.orders)
    world.mend_table()
    long = await world.context.store.find("a", LONG)
    assert long is not None
    await asyncio.sleep(30.0)
    assert world.begun_since(place) == [], "no call that got a 503 runs"
    assert all(task.done() for task in before), "calls that were accepted before are answered"
    assert world.doubled() == []
    assert [call.id for call in (await world.world.folded()).shard.state.calls.values()] == [long.id]
    assert (await world.call("chat, whole")).status == 200
    await world.close()


@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize(("fault", "seconds", "answered_s"), [("throttled", 60.0, 5.0), ("gone", 600.0, ANSWERED_S)])
async def test_the_service_is_back_at_once_after_a_long_outage(
    seed: int, fault: Fault, seconds: float, answered_s: float
) -> None:
    """While a tenth of the requests succeeds, each entry that is written begins the patience anew."""
    world, kinds = OutageWorld(2, seed), ["chat, whole", "chat, streamed"]
    await world.start()
    began = world.world.clock.monotonic()
    world.break_table(fault)
    await world.arrivals(seconds, 0.4, kinds)
    world.mend_table()
    await asyncio.sleep(BACK_S)
    found = world.began(seconds, began)
    failed = [each for each in found if each.status != 200]
    assert max(each.seconds for each in failed) <= answered_s
    assert {(each.status, each.retry_after) for each in failed} == {(503, "1")}
    if fault == "gone":
        assert {each.status for each in found if each.began < began + seconds - ANSWERED_S} == {503}
    later = [await call for call in await world.arrivals(50.0, 0.4, kinds)]
    assert {each.status for each in later} == {200}
    assert max(each.seconds for each in later) <= 1.0
    assert world.doubled() == []
    assert len(world.workers.live) <= 2, "the attempts that ran when the table went away have ended"
    await world.close()


async def test_a_leader_that_dies_is_no_outage() -> None:
    world = OutageWorld(3)
    await world.start()
    world.world.host(world.world.leaders[0]).kill()
    calls = await world.arrivals(1.0, 0.05)
    assert {(await call).status for call in calls} == {200}
    await world.close()


async def test_a_leader_that_alone_cannot_reach_the_table_is_no_outage() -> None:
    world = OutageWorld(3)
    await world.start()
    leader = world.world.leaders[0]
    world.world.faults[leader].stalled = asyncio.Event()
    calls = await world.arrivals(1.0, 0.05)
    assert {(await call).status for call in calls} == {200}
    assert world.world.leaders not in ([], [leader])
    await world.close()


async def test_a_key_whose_call_got_a_503_runs_once_when_it_is_repeated() -> None:
    """The replies are lost, so the fate of a call is unknown: the key makes sure that it runs once."""
    world = OutageWorld(1)
    await world.start()
    world.world.faults["g1"].is_deaf = True
    chat = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    post = world.caller.post
    first = await world.world.on("front", post("/v1/chat/completions", chat, idempotency_key="mine"))
    assert first.status == 503
    world.mend_table()
    await asyncio.sleep(3.0)
    answers = [
        await world.world.on("front", post("/v1/chat/completions", chat, idempotency_key="mine")) for _ in range(2)
    ]
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()
    assert world.doubled() == []
    item = await world.context.store.find("a", "mine")
    assert item is not None
    assert sum(order.invocation == item.id for _, order in world.workers.orders) == 1
    await world.close()
