"""An engine that dies or hangs is replaced, and no request waits for ever; in virtual time, over scripted engines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from dispatcher.model.commands import Offer, Over, Status
from gpu_worker.engines.interface import (
    Engine,
    EngineError,
    EngineEvent,
    EngineFacts,
    EngineStats,
    EventQueue,
    Finished,
    Started,
    Token,
    WorkOrder,
    own_order,
)
from gpu_worker.engines.supervised import RESTARTS_MAX, SupervisedEngine
from gpu_worker.policies.scheduling_stats import SchedulingStats
from tests.support.worker.gate import DecidingGate
from tests.support.worker.harness import WorkerHarness, order, serving
from tests.support.worker.scripted_engine import MODEL, ScriptedEngine
from tests.support.world.virtual_time import START, LoopClock

pytestmark = pytest.mark.virtual_time


@dataclass
class Mortal(ScriptedEngine):
    """`fault`: what happens to it at its `at`-th token: it dies, or hangs for ever."""

    fault: str = "none"
    at: int = 3
    starts: int = 0
    stops: int = 0
    stop_hangs: bool = False
    counts: SchedulingStats = field(default_factory=SchedulingStats)

    def stats(self) -> EngineStats:
        return replace(super().stats(), counts=self.counts)

    async def start(self) -> None:
        self.starts += 1

    async def stop(self) -> None:
        self.stops += 1
        if self.stop_hangs:
            await asyncio.Event().wait()

    async def generate(self, request: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
        async for event in super().generate(request):
            if isinstance(event, Token) and event.output_tokens >= self.at and self.fault != "none":
                if self.fault == "dies":
                    raise EngineError("engine_failed", "dead")
                await asyncio.Event().wait()
            yield event


class Makers:
    """The first engine has the fault; those after it are well, or not."""

    def __init__(self, *faults: str, stop_hangs: bool = False) -> None:
        self.made: list[Mortal] = []
        self._faults = list(faults)
        self._stop_hangs = stop_hangs

    def __call__(self) -> Mortal:
        fault = self._faults[min(len(self.made), len(self._faults) - 1)]
        self.made.append(Mortal(fault=fault, stop_hangs=self._stop_hangs))
        return self.made[-1]


def asked(name: str = "a", tokens: int = 10) -> WorkOrder:
    return own_order(name, "tenant", {"prompt": "prompt"}, tokens)


async def at_once(make: Callable[[], Engine]) -> Engine:
    """In virtual time a thread would take for ever."""
    return make()


@asynccontextmanager
async def supervised(
    make: Callable[[], Engine], hang_s: float = 60.0, clock: LoopClock | None = None
) -> AsyncIterator[SupervisedEngine]:
    engine = SupervisedEngine(make, clock or LoopClock(), hang_s=hang_s, apart=at_once)
    await engine.start()
    yield engine
    await engine.stop()


async def replaced(engine: SupervisedEngine) -> None:
    while engine.restarts == 0 and not engine.hopeless.is_set():
        await asyncio.sleep(0.1)


async def outcome(engine: SupervisedEngine, request: WorkOrder) -> tuple[int, str]:
    """Tokens, and how it ended."""
    tokens = 0
    try:
        async for event in engine.generate(request):
            if isinstance(event, Token):
                tokens = event.output_tokens
            elif isinstance(event, Finished):
                return tokens, event.reason
            else:
                assert isinstance(event, Started)
    except EngineError as error:
        return tokens, error.code
    return tokens, "nothing"


class Hung(ScriptedEngine):
    """Computes nothing. As vLLM's front end does, it takes requests and answers an abort without its core."""

    async def generate(self, request: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
        aborted = self.running[request.execution] = asyncio.Event()
        self.waiting += 1
        yield Started(1)
        await aborted.wait()
        self.waiting -= 1
        yield Finished("aborted", 1, 0)

    def stats(self) -> EngineStats:
        return EngineStats(self.waiting, 0, 0.0, {})


@pytest.mark.parametrize("fault", ["dies", "hangs"])
async def test_what_ran_hears_of_it_and_another_serves(fault: str) -> None:
    makers = Makers(fault, "none")
    async with supervised(makers, 5.0) as engine:
        ended = await asyncio.gather(*(outcome(engine, asked(name)) for name in "abc"))
        assert {code for _, code in ended} == {"engine_restarted"}
        await replaced(engine)
        assert await outcome(engine, asked("d")) == (10, "length")
        assert (makers.made[0].stops, makers.made[1].starts, engine.restarts) == (1, 1, 1)


async def test_slow_is_not_hung_and_idle_is_not_either() -> None:
    async with supervised(lambda: ScriptedEngine(token_s=4.0), 5.0) as engine:
        await asyncio.sleep(60.0)
        assert await outcome(engine, asked(tokens=4)) == (4, "length")
        assert engine.restarts == 0


async def test_a_finished_request_whose_end_waits_for_the_gate_is_no_hang() -> None:
    async with supervised(ScriptedEngine) as engine:
        harness = WorkerHarness(engine)  # type: ignore[arg-type]
        harness.gate.away = True
        reading = harness.start(order(deadline_at=START + 900))
        await asyncio.sleep(600)
        assert engine.restarts == 0
        harness.gate.away = False
        assert json.loads((await reading)[-1])["event"] == "finished"


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
    harness = WorkerHarness(engine, gate=(gate := DecidingGate()))  # type: ignore[arg-type]
    async with serving(harness):
        harness.executions.engine_serves, harness.agent.engine_changed = engine.serves, engine.changed
        gate.answers_s = 0.01
        state = await gate.do(
            gate.alone.new_call("a", 8.0, id="p-1", process="p", model=MODEL, deadline_at=START + 500)
        )
        while not isinstance(state, Over):
            if isinstance(state, Offer):
                await harness.execute(order(state.id, attempt=state.attempt, deadline_at=START + 500))
            await asyncio.sleep(0.01)
            state = await gate.do(Status("p-1"))
        assert state.outcome == "done"
    await engine.stop()


async def test_the_error_of_a_replaced_engine_does_not_end_the_next() -> None:
    """Two requests run when the engine dies. The reader of the second is slow: it gets the error after the restart."""
    events: list[EventQueue] = []

    class Dies(ScriptedEngine):
        async def generate(self, request: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
            events.append(queue := EventQueue())
            yield Started(1)
            async for event in queue:
                yield event

    engines = iter((Dies(), ScriptedEngine()))
    async with supervised(lambda: next(engines)) as engine:
        streams = [engine.generate(asked(name)) for name in "ab"]
        for stream in streams:
            assert isinstance(await anext(stream), Started)
        for queue in events:
            queue.put_nowait(EngineError("engine_failed", "dead"))
        for stream in streams:
            with pytest.raises(EngineError, match="restarted"):
                await anext(stream)
            await asyncio.sleep(5)
            assert engine.serves()
        assert engine.restarts == 1


@pytest.mark.parametrize("every_s", [10.0, 50.0])
async def test_new_and_aborted_requests_do_not_hide_a_hang(every_s: float) -> None:
    async with supervised(Hung) as engine:
        for number in range(12):
            reading = asyncio.ensure_future(outcome(engine, asked(str(number))))
            await asyncio.sleep(every_s - 1)
            await engine.abort(str(number))
            assert (await reading)[1] in ("aborted", "engine_restarted")
            await asyncio.sleep(1)
        assert engine.restarts


async def test_a_jump_of_the_wall_clock_is_no_hang() -> None:
    class Jumps(LoopClock):
        def now(self) -> float:
            return super().now() + (3600 if self.monotonic() > START + 5 else 0)

    async with supervised(lambda: ScriptedEngine(token_s=4.0), 5.0, Jumps()) as engine:
        assert await outcome(engine, asked(tokens=4)) == (4, "length")
        assert engine.restarts == 0


@pytest.mark.parametrize(("fault", "stop_hangs"), [("dies", False), ("hangs", True)])
async def test_there_is_an_end_to_it(fault: str, stop_hangs: bool) -> None:
    engine = SupervisedEngine(Makers(fault, stop_hangs=stop_hangs), LoopClock(), hang_s=2.0, apart=at_once)
    await engine.start()
    while not engine.hopeless.is_set():
        await outcome(engine, asked())
        await asyncio.sleep(1.0)
    assert engine.restarts <= RESTARTS_MAX
    assert (await outcome(engine, asked()))[1] == "engine_restarted"
    if not stop_hangs:
        await engine.stop()


@pytest.mark.parametrize(("context", "serves"), [(1000, True), (1500, True), (999, False)])
async def test_a_new_engine_may_find_more_memory_but_not_less(context: int, serves: bool) -> None:
    """The gate sends requests of the length that was announced."""
    facts = [EngineFacts("m", 1000, 1.0), EngineFacts("m", context, 1.0)]
    made = (Mortal(fault=fault, facts=facts[at]) for at, fault in enumerate(("dies", "none")))
    async with supervised(lambda: next(made), 5.0) as engine:
        await outcome(engine, asked())
        await replaced(engine)
        assert engine.hopeless.is_set() is not serves
        assert engine.facts == facts[0]


async def test_a_tenants_own_error_is_no_death() -> None:
    async with supervised(ScriptedEngine) as engine:
        with pytest.raises(EngineError, match="too long"):
            await anext(engine.generate(own_order("a", "t", {"prompt": "x" * 2000}, 1)))
        await asyncio.sleep(5.0)
        assert engine.restarts == 0


async def test_work_without_an_event_is_no_hang_as_long_as_something_moves() -> None:
    """A long prompt in pieces: nothing to tell for longer than `hang_s`, and more of the cache in use all the while."""

    class Prefilling(ScriptedEngine):
        def stats(self) -> EngineStats:
            return replace(super().stats(), kv_use=asyncio.get_running_loop().time() % 1000 / 1000)

    async with supervised(lambda: Prefilling(token_s=30.0), 5.0) as engine:
        assert await outcome(engine, asked(tokens=2)) == (2, "length")
        assert engine.restarts == 0


async def test_counts_and_what_tenants_received_do_not_fall_where_an_engine_is_replaced() -> None:
    makers = Makers("dies", "none")
    async with supervised(makers) as engine:

        def counted() -> tuple[int, float]:
            stats = engine.stats()
            return stats.counts.recomputed_tokens, stats.tenants["a"].service

        makers.made[0].counts.recomputed_tokens = 7
        await outcome(engine, asked())
        seen = set()
        while engine.restarts == 0:
            seen.add(counted())
            await asyncio.sleep(0.1)
        assert seen | {counted()} == {(7, 2 * 3)}
        await outcome(engine, asked())
        assert counted() == (7, 2 * 3 + 2 * 10)
