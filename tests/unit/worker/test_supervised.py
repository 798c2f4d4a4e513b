"""An engine that dies or hangs is replaced, and no request waits for ever; in virtual time, over scripted engines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace

import pytest

from gpu_worker.engines.event_queue import EventQueue
from gpu_worker.engines.interface import (
    Engine,
    EngineError,
    EngineEvent,
    EngineFacts,
    EngineStats,
    Finished,
    Started,
    Token,
    WorkOrder,
    own_order,
)
from gpu_worker.engines.supervised import RESTARTS_MAX, SupervisedEngine
from gpu_worker.policies.scheduling_stats import SchedulingStats
from tests.support.virtual_time import START, LoopClock
from tests.support.worker.harness import WorkerHarness, order
from tests.support.worker.scripted_engine import ScriptedEngine

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


@pytest.mark.parametrize("fault", ["dies", "hangs"])
async def test_what_ran_hears_of_it_and_another_serves(fault: str) -> None:
    clock = LoopClock()
    makers = Makers(fault, "none")
    engine = SupervisedEngine(makers, clock, hang_s=5.0, apart=at_once)
    await engine.start()
    ended = await asyncio.gather(*(outcome(engine, asked(name)) for name in "abc"))
    assert {code for _, code in ended} == {"engine_restarted"}
    while engine.restarts == 0:
        await clock.sleep(0.1)
    assert await outcome(engine, asked("d")) == (10, "length")
    assert (makers.made[0].stops, makers.made[1].starts, engine.restarts) == (1, 1, 1)
    await engine.stop()


async def test_slow_is_not_hung_and_idle_is_not_either() -> None:
    clock = LoopClock()
    engine = SupervisedEngine(lambda: ScriptedEngine(token_s=4.0), clock, hang_s=5.0, apart=at_once)
    await engine.start()
    await clock.sleep(60.0)
    assert await outcome(engine, asked(tokens=4)) == (4, "length")
    assert engine.restarts == 0
    await engine.stop()


async def test_a_finished_request_whose_end_waits_for_the_gate_is_no_hang() -> None:
    engine = SupervisedEngine(ScriptedEngine, LoopClock(), apart=at_once)
    await engine.start()
    harness = WorkerHarness(engine)  # type: ignore[arg-type]
    harness.gate.away = True
    reading = harness.start(order(deadline_at=START + 900))
    await asyncio.sleep(600)
    assert engine.restarts == 0
    harness.gate.away = False
    assert json.loads((await reading)[-1])["event"] == "finished"
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
    engine = SupervisedEngine(lambda: next(engines), LoopClock(), apart=at_once)
    await engine.start()
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
    await engine.stop()


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


@pytest.mark.parametrize("every_s", [10.0, 50.0])
async def test_new_and_aborted_requests_do_not_hide_a_hang(every_s: float) -> None:
    clock = LoopClock()
    engine = SupervisedEngine(Hung, clock, hang_s=60.0, apart=at_once)
    await engine.start()
    for number in range(12):
        reading = asyncio.ensure_future(outcome(engine, asked(str(number))))
        await clock.sleep(every_s - 1)
        await engine.abort(str(number))
        assert (await reading)[1] in ("aborted", "engine_restarted")
        await clock.sleep(1)
    assert engine.restarts
    await engine.stop()


async def test_a_jump_of_the_wall_clock_is_no_hang() -> None:
    class Jumps(LoopClock):
        def now(self) -> float:
            return super().now() + (3600 if self.monotonic() > START + 5 else 0)

    engine = SupervisedEngine(lambda: ScriptedEngine(token_s=4.0), Jumps(), hang_s=5.0, apart=at_once)
    await engine.start()
    assert await outcome(engine, asked(tokens=4)) == (4, "length")
    assert engine.restarts == 0
    await engine.stop()


async def test_what_tenants_received_is_carried_over() -> None:
    clock = LoopClock()
    engine = SupervisedEngine(Makers("dies", "none"), clock, apart=at_once)
    await engine.start()
    await outcome(engine, asked())
    while engine.restarts == 0:
        await clock.sleep(0.1)
    before = engine.stats().tenants["a"].service
    assert before == 2 * 3
    await outcome(engine, asked())
    assert engine.stats().tenants["a"].service == before + 2 * 10
    await engine.stop()


@pytest.mark.parametrize(("fault", "stop_hangs"), [("dies", False), ("hangs", True)])
async def test_there_is_an_end_to_it(fault: str, stop_hangs: bool) -> None:
    clock = LoopClock()
    makers = Makers(fault, stop_hangs=stop_hangs)
    engine = SupervisedEngine(makers, clock, hang_s=2.0, apart=at_once)
    await engine.start()
    while not engine.hopeless.is_set():
        await outcome(engine, asked())
        await clock.sleep(1.0)
    assert engine.restarts <= RESTARTS_MAX
    assert (await outcome(engine, asked()))[1] == "engine_restarted"
    if not stop_hangs:
        await engine.stop()


@pytest.mark.parametrize(("context", "serves"), [(1000, True), (1500, True), (999, False)])
async def test_a_new_engine_may_find_more_memory_but_not_less(context: int, serves: bool) -> None:
    """The gate sends requests of the length that was announced."""
    clock = LoopClock()
    facts = [EngineFacts("m", 1000, 1.0), EngineFacts("m", context, 1.0)]
    made = (Mortal(fault=fault, facts=facts[at]) for at, fault in enumerate(("dies", "none")))
    engine = SupervisedEngine(lambda: next(made), clock, hang_s=5.0, apart=at_once)
    await engine.start()
    await outcome(engine, asked())
    while engine.restarts == 0 and not engine.hopeless.is_set():
        await clock.sleep(0.1)
    assert engine.hopeless.is_set() is not serves
    assert engine.facts == facts[0]
    await engine.stop()


async def test_a_tenants_own_error_is_no_death() -> None:
    clock = LoopClock()
    engine = SupervisedEngine(lambda: ScriptedEngine(), clock, apart=at_once)
    await engine.start()
    with pytest.raises(EngineError, match="too long"):
        await anext(engine.generate(own_order("a", "t", {"prompt": "x" * 2000}, 1)))
    await clock.sleep(5.0)
    assert engine.restarts == 0
    await engine.stop()


async def test_work_without_an_event_is_no_hang_as_long_as_something_moves() -> None:
    """A long prompt in pieces: nothing to tell for longer than `hang_s`, and more of the cache in use all the while."""

    class Prefilling(ScriptedEngine):
        def stats(self) -> EngineStats:
            return replace(super().stats(), kv_use=clock.now() % 1000 / 1000)

    clock = LoopClock()
    engine = SupervisedEngine(lambda: Prefilling(token_s=30.0), clock, hang_s=5.0, apart=at_once)
    await engine.start()
    assert await outcome(engine, asked(tokens=2)) == (2, "length")
    assert engine.restarts == 0
    await engine.stop()


async def test_counts_do_not_fall_where_an_engine_is_replaced() -> None:
    clock = LoopClock()
    makers = Makers("dies", "none")
    engine = SupervisedEngine(makers, clock, apart=at_once)
    await engine.start()
    makers.made[0].counts.recomputed_tokens = 7
    await outcome(engine, asked())
    seen = []
    while engine.restarts == 0:
        seen.append((engine.stats().counts.recomputed_tokens, engine.stats().tenants["a"].service))
        await clock.sleep(0.1)
    seen.append((engine.stats().counts.recomputed_tokens, engine.stats().tenants["a"].service))
    assert set(seen) == {(7, 6)}
    await engine.stop()
