"""The worker's service with the real shard: what the worker reports and what the log then holds agree."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from dispatcher.model.commands import Accept, Offer, Over, Return, Status, Unknown, Waiting
from dispatcher.model.facts import ProcessSet, Returned
from dispatcher.model.worker_protocol import Finished, WorkOrder
from gpu_worker.engines.interface import Engine, EngineError, EngineEvent
from gpu_worker.engines.supervised import SupervisedEngine
from gpu_worker.service.agent import OFFER_S, AgentSettings
from tests.support.virtual_time import START, LoopClock
from tests.support.worker.gate import DecidingGate
from tests.support.worker.harness import SLOTS, WorkerHarness, order
from tests.support.worker.scripted_engine import MODEL, ScriptedEngine

pytestmark = pytest.mark.virtual_time

PROCESS = "pppppppppppp"
HEARTBEAT_S = 1.2 * AgentSettings().heartbeat_s


@dataclass
class AcceptingGate(DecidingGate):
    async def accept(self, number: int, *, durable: bool = False) -> Offer:
        """Accept a call of the process. A slot is free."""
        outcome = await self.do(self.new_call(number, durable=durable))
        assert isinstance(outcome, Offer)
        return outcome

    def new_call(self, number: int, *, durable: bool = False) -> Accept:
        name = f"{PROCESS}-{number}"
        until = START + 500
        return self.alone.new_call(
            "a", 8.0, id=name, process=PROCESS, floor=0, model=MODEL, durable=durable, deadline_at=until
        )


def work(offered: Offer, **fields: object) -> WorkOrder:
    return order(offered.id, attempt=offered.attempt, deadline_at=START + 500, **fields)


@asynccontextmanager
async def serving(engine: ScriptedEngine | None = None) -> AsyncIterator[tuple[WorkerHarness, AcceptingGate]]:
    gate = AcceptingGate()
    harness = WorkerHarness(engine, gate=gate)
    await harness.agent.join()
    harness.serving = asyncio.ensure_future(harness.agent.serve(harness.stop.wait()))
    try:
        yield harness, gate
    finally:
        harness.serving.cancel()
        await asyncio.wait({harness.serving})


def used(gate: AcceptingGate) -> tuple[int, int]:
    """Return the tokens that the log charged."""
    rows = gate.shard.usage_rows()
    return sum(row.input_tokens for row in rows), sum(row.output_tokens for row in rows)


async def test_the_last_event_the_record_and_the_charge_agree() -> None:
    async with serving() as (harness, gate):
        offered = await gate.accept(1)
        (*_, last) = await harness.execute(work(offered))
        assert last == Finished("length", 5, 3)
        assert await gate.do(Status(offered.id)) == Over(offered.id, 1, "done", 5, 3)
        assert used(gate) == (5, 3)


async def test_a_caller_that_leaves_is_charged_to_the_token_and_its_slot_goes_to_the_next() -> None:
    async with serving() as (harness, gate):
        offers = [await gate.accept(number) for number in range(SLOTS)]
        assert isinstance(await gate.do(gate.new_call(SLOTS)), Waiting)
        lines = harness.lines(work(offers[0], max_tokens=400))
        for _ in range(5):
            await anext(lines)
        await lines.aclose()
        await asyncio.sleep(0.5)
        assert await gate.do(Status(offers[0].id)) == Over(offers[0].id, 1, "cancelled", *used(gate))
        assert used(gate) == (5, harness.engine.generated)
        assert isinstance(await gate.do(Status(f"{PROCESS}-{SLOTS}")), Offer)


async def test_an_offer_that_is_not_begun_suspends_its_process_and_frees_the_slot() -> None:
    async with serving() as (harness, gate):
        offered = await gate.accept(1)
        await asyncio.sleep(OFFER_S + HEARTBEAT_S + 0.5)
        assert ProcessSet(PROCESS, "silent") in gate.facts
        (returned,) = [fact for fact in gate.facts if isinstance(fact, Returned)]
        assert (returned.reason, returned.counted) == ("not_begun", False)
        assert isinstance(await gate.do(Status(offered.id)), Waiting)
        assert (await harness.call(work(offered)).finished()).status == 409
        assert not harness.outbox.live()


async def test_an_engine_that_fails_at_once_gives_the_call_back_and_it_is_offered_again() -> None:
    class FailsOnce(ScriptedEngine):
        async def generate(self, request):  # type: ignore[no-untyped-def]
            if not self.requests:
                self.requests.append(request)
                raise EngineError("engine_restarted", "it was")
            async for event in super().generate(request):
                yield event

    async with serving(FailsOnce()) as (harness, gate):
        offered = await gate.accept(1)
        (refused,) = await harness.execute(work(offered))
        assert not refused.final  # type: ignore[union-attr]
        again = await gate.do(Status(offered.id))
        assert isinstance(again, Offer)
        assert again.attempt == 2
        assert isinstance((await harness.execute(work(again)))[-1], Finished)
        assert used(gate) == (5, 3)


async def test_a_call_waits_while_a_dead_engine_is_replaced() -> None:
    class Dies(ScriptedEngine):
        async def generate(self, request: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
            await asyncio.sleep(0.1)
            raise EngineError("engine_failed", "dead")
            yield

    async def slowly(make: Callable[[], Engine]) -> Engine:
        await asyncio.sleep(30)
        return make()

    engines = iter((Dies(), ScriptedEngine()))
    engine = SupervisedEngine(lambda: next(engines), LoopClock(), apart=slowly)
    await engine.start()
    async with serving(engine) as (harness, gate):  # type: ignore[arg-type]
        harness.executions.engine_serves, harness.agent.engine_changed = engine.serves, engine.changed
        gate.answers_s = 0.01
        state = await gate.do(gate.new_call(1))
        while not isinstance(state, Over):
            if isinstance(state, Offer):
                await harness.execute(work(state))
            await asyncio.sleep(0.01)
            state = await gate.do(Status(f"{PROCESS}-1"))
        assert state.outcome == "done"
    await engine.stop()


async def test_a_durable_call_is_answered_though_its_caller_left() -> None:
    async with serving() as (harness, gate):
        offered = await gate.accept(1, durable=True)
        lines = harness.lines(work(offered, durable=True))
        await anext(lines)
        await lines.aclose()
        await harness.executions.idle()
        assert await gate.do(Status(offered.id)) == Over(offered.id, 1, "done", 5, 3)
        assert json.loads(gate.ended[0].answer)["choices"][0]["text"] == "xxx"


@pytest.mark.parametrize("away_s", [3.0, 60.0])
async def test_an_outage_loses_no_charge_and_a_repeat_adds_none(away_s: float) -> None:
    async with serving() as (harness, gate):
        offered = await gate.accept(1)
        reading = harness.start(work(offered))
        await asyncio.sleep(0.1)
        gate.loses_reply = True
        await asyncio.sleep(1)
        gate.away = True
        await asyncio.sleep(away_s)
        gate.away = gate.loses_reply = False
        assert json.loads((await reading)[-1])["event"] == "finished"
        assert used(gate) == (5, 3)
        assert [end.outcome for end in gate.ended] == ["done"]


async def test_a_worker_that_drains_leaves_nothing_behind() -> None:
    async with serving() as (harness, gate):
        offered, unbegun = await gate.accept(1), await gate.accept(2)
        reading = harness.start(work(offered, max_tokens=50))
        await asyncio.sleep(0.2)
        harness.stop.set()
        await harness.serving
        assert json.loads((await reading)[-1])["event"] == "finished"
        assert isinstance(await gate.do(Status(unbegun.id)), Waiting)
        assert not gate.shard.fleet()


async def test_an_attempt_that_was_given_away_is_neither_charged_twice_nor_answered() -> None:
    """As after a lease that ended: another attempt owns the call."""
    async with serving() as (harness, gate):
        offered = await gate.accept(1)
        reading = harness.start(work(offered))
        await asyncio.sleep(0.05)
        await gate.do(Return(offered.id, 1, "lost", "w"))
        assert json.loads((await reading)[-1])["event"] == "token"
        assert gate.ended == []
        assert used(gate) == (0, 0)
        assert not isinstance(await gate.do(Status(offered.id)), Unknown)
