"""A call while its stream runs: fenced streams, further offers, slow readers, and one end; and how it reacts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import pytest

from dispatcher.model.answers import Collected
from dispatcher.model.commands import End, Gone, Offer, Outcome, Over, Return, Silent, Waiting
from dispatcher.model.errors import DeadlineExceeded, StoreUnavailable, WorkerFailed
from dispatcher.model.worker_protocol import Finished, Started, Token, WorkEvent, WorkOrder
from dispatcher.operations.calls.followed import EVENTS_AHEAD_MAX, Signal
from dispatcher.ports import AttemptEvents, RunningAttempt
from tests.support.attempts import GeneratedAttempt
from tests.support.world.memory_gate import Gate
from tests.support.world.story import begun, dispatched, events_of, followed, read, take_slots
from tests.support.world.worker_client import Act, ScriptedWorkers


def lost(gate: Gate, call_id: str, attempt: int) -> None:
    """The gate learns that the attempt is lost, while its stream goes on."""
    gate.shard.decide(Return(call_id, attempt, "lost", gate.shard.shard.state.calls[call_id].worker))


@pytest.mark.parametrize(("after_s", "delivered"), [(0.05, 0), (0.25, 2)])
async def test_a_stream_that_the_gate_fenced_is_closed_at_once(gate: Gate, after_s: float, delivered: int) -> None:
    gate.add_worker("v")
    call = await dispatched(gate, "a", max_tokens=5, stream=True)
    reading = asyncio.ensure_future(read(call))
    await asyncio.sleep(after_s)
    lost(gate, call.call.id, 1)
    await asyncio.sleep(0.01)
    assert gate.workers.closed == [f"{call.call.id}#1"]
    if delivered:
        with pytest.raises(WorkerFailed):
            await reading
        (ended,) = gate.ends("failed")
        assert (ended.attempt, ended.output_tokens, len(gate.workers.orders)) == (2, delivered, 1)
    else:
        assert (await reading).output_tokens == 5
        assert [order.attempt for _, order in gate.workers.orders] == [1, 2]


async def test_an_offer_that_is_not_above_the_highest_is_not_begun(gate: Gate) -> None:
    call = await dispatched(gate, "a")
    await asyncio.sleep(0.05)
    gate.link().put(Offer(call.call.id, 1, "w", "http://w", 0))
    gate.link().put(Offer(call.call.id, 0, "w", "http://w", 0))
    assert (await read(call)).text == "xxx"
    assert len(gate.workers.orders) == 1


async def test_a_caller_that_does_not_read_holds_up_no_offer(gate: Gate) -> None:
    """The stream is read ahead up to a bound, and news are reacted to all the same."""
    gate.add_worker("v")
    gate.workers.acts.append(Act(token_s=0.001))
    call = await dispatched(gate, "a", max_tokens=1000, stream=True)
    events = events_of(call.following)
    assert isinstance(await anext(events), Started)
    assert isinstance(await anext(events), Token)
    await asyncio.sleep(5.0)
    read_ahead = len(call.following._events._events)
    assert EVENTS_AHEAD_MAX - 1 <= read_ahead <= EVENTS_AHEAD_MAX
    lost(gate, call.call.id, 1)
    await asyncio.sleep(0.01)
    (ended,) = gate.ends("failed")
    assert ended.output_tokens <= EVENTS_AHEAD_MAX + 1
    with pytest.raises(WorkerFailed):
        await read(call)


@dataclass
class Buffered:
    """ports.WorkerClient with a network between: it holds the events that the front has not read yet."""

    workers: ScriptedWorkers

    def execute(self, offer: Offer, order: WorkOrder, events: AttemptEvents) -> RunningAttempt:
        return GeneratedAttempt(self._generate(offer, order), events)

    async def _generate(self, offer: Offer, order: WorkOrder) -> AsyncGenerator[WorkEvent, None]:
        sent: asyncio.Queue[WorkEvent] = asyncio.Queue()

        async def send() -> None:
            async with aclosing(self.workers.generate(offer, order)) as events:
                async for event in events:
                    sent.put_nowait(event)

        sending = asyncio.ensure_future(send())
        try:
            while not isinstance(event := await sent.get(), Finished):
                yield event
            yield event
        finally:
            sending.cancel()

    async def close(self) -> None:
        await self.workers.close()


@pytest.mark.parametrize("pause_s", [1.0, 20.0])
@pytest.mark.parametrize("key", ["", "k"])
async def test_a_slow_reader_gets_the_whole_answer_after_its_end_is_in_the_log(
    gate: Gate, key: str, pause_s: float
) -> None:
    gate.context.workers = Buffered(gate.workers)
    gate.workers.acts.append(Act(token_s=0.001))
    call = await dispatched(gate, "a", key, max_tokens=200, stream=True)
    got = Collected()
    async for event in events_of(call.following):
        got.note(event)
        if got.output_tokens % 20 == 0:
            await asyncio.sleep(pause_s)
    call.leave()
    assert got.text == "x" * 200


@pytest.mark.parametrize("key", ["", "k"])
async def test_the_end_is_in_the_log_and_the_connection_breaks(gate: Gate, key: str) -> None:
    """The record says done. A kept answer is delivered; without one the text that arrived is known to be whole."""
    gate.workers.acts.append(Act(cut_at_end=True, reason="stop"))
    got = await followed(gate, "a", key)
    assert isinstance(got, Collected)
    assert (got.text, got.input_tokens, got.output_tokens) == ("xxx", 10, 3)
    assert (gate.spent("a"), len(gate.workers.orders)) == (16.0, 1)


async def test_an_end_without_all_of_its_text_is_an_error(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection broke before the last token, and the worker ended the call as done."""

    async def cut(_offer: Offer, order: WorkOrder) -> AsyncGenerator[WorkEvent, None]:
        yield Started(10)
        yield Token("x", 1)
        gate.shard.decide(End(order.invocation, order.attempt, "done", 10, 3, order.terms.tenant))
        gate.workers.seen.add(order.execution)
        raise WorkerFailed()

    monkeypatch.setattr(gate.workers, "generate", cut)
    got = await followed(gate, "a")
    assert isinstance(got, WorkerFailed)
    assert "end of the answer" in got.message


async def test_an_error_of_the_client_is_a_lost_stream(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(_offer: Offer, order: WorkOrder) -> AsyncGenerator[WorkEvent, None]:
        gate.workers.seen.add(order.execution)
        gate.workers.lost(_offer)
        raise RuntimeError("a mistake")
        yield Started(1)

    monkeypatch.setattr(gate.workers, "generate", breaks)
    assert isinstance(await followed(gate, "a"), WorkerFailed)


async def test_a_process_that_was_given_up_answers_its_callers(gate: Gate) -> None:
    busy = await take_slots(gate, context=gate.process(), max_tokens=20)
    waiting = begun(gate, "a")
    await asyncio.sleep(0.01)
    gate.shard.decide(Silent("p0", False))
    gate.shard.decide(Gone("p0", False))
    got = await waiting
    assert isinstance(got, WorkerFailed)
    assert "no message from this server" in got.message
    await busy


async def test_the_deadline_passes_in_the_queue_whoever_notices_it_first(gate: Gate) -> None:
    busy = await take_slots(gate, max_tokens=99)
    got = await asyncio.gather(begun(gate, "a", deadline_s=2.0), begun(gate, "a", "k", deadline_s=2.0))
    assert [type(one) for one in got] == [DeadlineExceeded] * 2
    await gate.ended("a", "k", "expired")
    assert len(gate.workers.orders) == 2
    await busy


async def test_items_wait_for_the_end_of_a_reaction_and_its_outcome_comes_first(gate: Gate) -> None:
    call = await dispatched(gate, "a")
    following, seen, going = call.following, list[object](), asyncio.Event()
    outcome = Waiting(call.call.id, 1)

    async def slow() -> Outcome:
        await going.wait()
        return outcome

    def react(item: object) -> object:
        seen.append(item)
        return slow() if item is Signal.LOOK else None

    following._react = react  # type: ignore[assignment]
    following.take(Signal.LOOK)
    following.take(Signal.LATE)
    await asyncio.sleep(0.01)
    assert seen == [Signal.LOOK]
    going.set()
    await asyncio.sleep(0.01)
    assert seen == [Signal.LOOK, outcome, Signal.LATE]
    del following._react
    call.leave()


async def test_an_error_of_a_reaction_ends_its_call_and_nothing_else(gate: Gate) -> None:
    """Who gives an item to a call, such as the link, gets no error of it."""
    call, other = await dispatched(gate, "a"), await dispatched(gate, "a")

    def react(item: object) -> None:
        raise ValueError("a mistake")

    call.following._react = react  # type: ignore[method-assign]
    call.following.take(Signal.LOOK)
    assert isinstance(call.following.error, StoreUnavailable)
    assert (await read(other)).text == "xxx"
    call.leave()
    await gate.quiet()
    assert call.call.id not in gate.shard.shard.state.calls


async def test_a_call_whose_end_is_in_the_log_has_no_deadline_any_more(gate: Gate) -> None:
    call = await dispatched(gate, "a")
    await asyncio.sleep(0.05)
    call.following.take(Over(call.call.id, 1, "done", 10, 3))
    timer = call.following._timer
    assert timer is not None
    assert timer.cancelled()
    assert (await read(call)).text == "xxx"
