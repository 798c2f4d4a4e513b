"""How far a durable call is: from the item where it has its answer, else from the gate; nothing is written."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dispatcher.model.commands import Cancel
from dispatcher.operations.calls.answer import progress_of
from tests.support.world.memory_gate import Gate
from tests.support.world.story import dispatched, followed, queued, read, take_slots

WRITES = ("put INV", "update INV")


async def status(gate: Gate, key: str = "k") -> str:
    before = [gate.store.requests[name] for name in WRITES]
    progress = await progress_of(gate.context, await gate.item("a", key))
    assert [gate.store.requests[name] for name in WRITES] == before
    return progress.status


async def test_a_call_that_waits_runs_and_is_done(gate: Gate) -> None:
    busy = await take_slots(gate)
    call = await queued(gate, "a", "k")
    assert await status(gate) == "queued"
    reading = asyncio.ensure_future(read(call))
    await asyncio.sleep(0.35)
    assert await status(gate) == "running"
    await reading
    assert await status(gate) == "done"
    await busy


@pytest.mark.parametrize(("outcome", "shown"), [("cancelled", "failed"), ("expired", "expired"), ("failed", "failed")])
async def test_an_end_without_an_answer_is_shown_as_the_log_says(gate: Gate, outcome: str, shown: str) -> None:
    """No process holds the call: its end is a fact, and the item has no answer."""
    busy = [await dispatched(gate, "b") for _ in range(2)]
    call = await queued(gate, "a", "k")
    call.leave()
    await asyncio.sleep(0.01)
    gate.shard.decide(Cancel(call.call.id, outcome))
    assert (await gate.item("a", "k")).answer is None
    assert await status(gate) == shown
    for other in busy:
        other.leave()


async def test_a_call_that_the_gate_does_not_know_yet_is_queued_and_later_has_expired(gate: Gate) -> None:
    await followed(gate, "a", "k")
    item = replace(await gate.item("a", "k"), id="p9-1", key="new", answer=None)
    await gate.store.create(item)
    assert await status(gate, "new") == "queued"
    await asyncio.sleep(item.deadline_at - gate.clock.now())
    assert await status(gate, "new") == "expired"
