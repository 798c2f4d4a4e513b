"""Shedding at the worker: which requests are refused, with what answer, which times count, and what waits."""

from __future__ import annotations

import asyncio
import json

import pytest

from dispatcher.model.worker_protocol import Finished, Token, WorkRefused
from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import EngineError, Evicted, RefusedByPolicy
from gpu_worker.policies.shedding import Shedder, ShedSettings
from gpu_worker.policies.slo import Attainment, Slo, SloMonitor, SloSettings, SloTargets
from gpu_worker.service.slo_watch import WINDOW_S, Backlog, SloWatch
from tests.support.worker.harness import WorkerHarness, order, read
from tests.support.worker.scripted_engine import FailingEngine, ScriptedEngine
from tests.support.world.virtual_time import START, LoopClock

pytestmark = pytest.mark.virtual_time


P, S, B = Tier.PREMIUM, Tier.STANDARD, Tier.BACKGROUND


def touchy() -> Shedder:
    """Two late requests of a tier are a risk to it."""
    return Shedder(SloMonitor(SloSettings(samples_min=2)), ShedSettings(check_s=0.0))


async def late_premium(harness: WorkerHarness) -> None:
    """Two requests with a token each tenth of a second instead of each 30 ms."""
    for name in ("p1", "p2"):
        await harness.execute(order(name, tier=P))


async def test_while_premium_is_late_background_is_turned_away_and_the_engine_never_sees_it() -> None:
    harness = WorkerHarness(shedder=touchy())
    await late_premium(harness)
    reply = await harness.call(order("b", tier=B)).finished()
    refused = json.loads(reply.body.splitlines()[-1])
    assert (refused["status"], refused["code"], refused["final"]) == (429, "overloaded", True)
    assert refused["retry_after_s"] == pytest.approx(30.0, abs=1.0)
    assert [request.tier for request in harness.engine.requests] == [P, P]
    assert harness.executions.live() == frozenset()
    assert harness.executions.watch.sheds == {B: 1}
    (end,) = [end for end in harness.gate.ended if end.id == "b"]
    assert (end.outcome, end.input_tokens, end.output_tokens) == ("failed", 0, 0)
    assert json.loads(end.answer)["error"]["code"] == "overloaded"


async def test_a_deferred_request_is_not_shed() -> None:
    """The gate sends it only if nothing else waits for the slot: a final refusal would lose the work for nothing."""
    harness = WorkerHarness(shedder=touchy())
    await late_premium(harness)
    assert isinstance((await harness.execute(order("b", tier=B, deferred=True)))[-1], Finished)


async def test_the_others_are_let_in_and_background_is_again_after_the_calm() -> None:
    harness = WorkerHarness(shedder=touchy())
    await late_premium(harness)
    ends = [(await harness.execute(order(f"{tier}", tier=tier)))[-1] for tier in (S, B)]
    await asyncio.sleep(120)
    standard, background, again = [*ends, (await harness.execute(order("again", tier=B, deadline_at=START + 200)))[-1]]
    assert isinstance(standard, Finished)
    assert isinstance(background, WorkRefused)
    assert (background.status, background.code) == (429, "overloaded")
    assert background.retry_after_s == pytest.approx(30.0, abs=1.0)
    assert isinstance(again, Finished)


async def test_a_full_worker_says_so_and_sheds_nothing() -> None:
    harness = WorkerHarness(shedder=touchy())
    await late_premium(harness)
    for name in ("x", "y"):
        harness.start(order(name, max_tokens=100))
    await asyncio.sleep(0.01)
    refused = (await harness.execute(order("b", tier=B)))[-1]
    assert isinstance(refused, WorkRefused)
    assert (refused.status, refused.code, refused.retry_after_s) == (503, "worker_full", None)
    assert not harness.executions.watch.sheds


@pytest.mark.parametrize(
    ("error", "after", "status", "code"),
    [
        (Evicted(), 2, 503, "preempted"),
        (Evicted(exhausted=True), 2, 503, "preempted_too_often"),
        (RefusedByPolicy(), 0, 429, "rate_limit_exceeded"),
        (EngineError("engine_failed", "it failed"), 2, 500, "engine_failed"),
    ],
)
async def test_what_the_engine_ends_is_a_final_line_with_its_status(
    error: EngineError, after: int, status: int, code: str
) -> None:
    harness = WorkerHarness(FailingEngine(error, after))
    events = await harness.execute(order(max_tokens=9, tier=B))
    lines = [json.loads(line) for line in await harness.start(order("again"))]
    await harness.executions.idle()
    refused = events[-1]
    assert isinstance(refused, WorkRefused)
    assert (refused.status, refused.code, refused.final) == (status, code, True)
    assert (refused.retry_after_s is None) == (status == 500)
    assert ("retry_after_s" in lines[-1]) == (status != 500)
    assert max([0, *(event.output_tokens for event in events if isinstance(event, Token))]) == after
    assert [(end.id, end.outcome) for end in harness.gate.ended][:1] == [("i", "failed")]
    assert harness.gate.ended[0].output_tokens == after
    assert len(harness.gate.ended) + len(harness.gate.returned) == 2
    assert harness.executions.live() == frozenset()


def watched(targets: dict[Tier, SloTargets] | None = None) -> Shedder:
    return Shedder(SloMonitor(SloSettings(targets=targets or {P: SloTargets(0.2, 0.15, 2.0)})))


def attained(harness: WorkerHarness, kind: Slo, after_s: float = 20.0) -> Attainment:
    return harness.executions.watch.monitor.attainment(P, kind, START + after_s)


async def test_each_request_is_one_sample_of_each_kind() -> None:
    harness = WorkerHarness(shedder=watched())
    for name in ("r", "s"):
        await harness.execute(order(name, tier=P, max_tokens=5))
    assert [attained(harness, kind) for kind in Slo] == [Attainment(2, 2)] * 3


async def test_a_reader_that_dawdles_is_no_slow_engine() -> None:
    harness = WorkerHarness(shedder=watched())
    lines = harness.lines(order(tier=P, max_tokens=20))
    for _ in range(3):
        await anext(lines)
    await asyncio.sleep(15)
    await read(lines)
    assert attained(harness, Slo.TPOT) == Attainment(1, 1)
    assert attained(harness, Slo.TTFT) == Attainment(1, 1)


async def test_an_engine_that_starts_nothing_is_late_before_anything_has_ended() -> None:
    harness = WorkerHarness(ScriptedEngine(token_s=1000.0), watched())
    reading = [harness.start(order(name, tier=P)) for name in ("r", "s")]
    await asyncio.sleep(1)
    found = attained(harness, Slo.TTFT, 1.0)
    for one in reading:
        one.cancel()
    assert found == Attainment(0, 2)


async def test_what_is_late_for_its_deadline_is_counted_and_what_is_aborted_says_nothing() -> None:
    harness = WorkerHarness(shedder=watched())
    await harness.execute(order("late", tier=P, max_tokens=500, deadline_at=START + 3.05))
    lines = harness.lines(order("gone", tier=P, max_tokens=500))
    await anext(lines)
    await lines.aclose()
    await harness.executions.idle()
    assert harness.executions.watch.expiries == {P: 1}
    assert attained(harness, Slo.E2E) == Attainment(0, 1)
    assert attained(harness, Slo.TPOT) == Attainment(0, 0)
    assert attained(harness, Slo.TTFT).met == attained(harness, Slo.TTFT).samples


def test_a_clock_that_is_set_back_does_no_harm() -> None:
    class Clock(LoopClock):
        at = 100.0

        def now(self) -> float:
            return self.at

    clock = Clock()
    watch = SloWatch(clock)
    watch.on_arrived("r", P, 10)
    clock.at = 50.0
    assert watch.now_s() == 100.0
    watch.on_left("r")
    watch.on_left("r")
    watch.reader_delayed("r", 1.0)


P, B = Tier.PREMIUM, Tier.BACKGROUND


def arrived(backlog: Backlog, name: str, tier: Tier = B, *, prompt: int = 100, most: int = 50) -> None:
    backlog.on_arrived(name, tier, most)
    backlog.on_started(name, prompt)


def test_what_has_no_token_yet_waits() -> None:
    backlog = Backlog()
    arrived(backlog, "r")
    arrived(backlog, "s", P)
    assert (backlog.waiting()[B], backlog.waiting()[P]) == (200.0, 200.0)
    backlog.on_generated("r", 1, 0.0)
    assert (backlog.waiting()[B], backlog.waiting()[P]) == (0.0, 200.0)
    backlog.on_left("s", whole=False)
    assert sum(backlog.waiting().values()) == 0.0


def test_a_request_without_output_is_its_prompt() -> None:
    backlog = Backlog()
    arrived(backlog, "embeddings", most=0)
    assert backlog.waiting()[B] == 100.0
    backlog.on_generated("embeddings", 0, 0.0)
    backlog.on_left("embeddings", whole=True)
    assert (backlog.used, backlog.service_per_s(0.5)) == (Backlog().used, 100.0)


def test_it_learns_how_much_of_max_tokens_is_used() -> None:
    backlog = Backlog()
    for number in range(10):
        arrived(backlog, f"{number}")
        backlog.on_generated(f"{number}", 10, 0.0)
        backlog.on_left(f"{number}", whole=True)
    arrived(backlog, "gone")
    backlog.on_generated("gone", 50, 0.0)
    backlog.on_left("gone", whole=False)
    arrived(backlog, "r")
    assert backlog.waiting()[B] == pytest.approx(100 + 2 * 10)


def test_the_rate_is_of_the_window() -> None:
    backlog = Backlog()
    assert backlog.service_per_s(0.0) == 0.0
    for second in range(100):
        arrived(backlog, f"{second}")
        backlog.on_generated(f"{second}", 50, float(second))
    assert backlog.service_per_s(99.0) == pytest.approx(200.0, rel=0.05)
    assert backlog.service_per_s(99.0 + 2 * WINDOW_S) == 0.0


def test_a_lull_does_not_make_it_slow() -> None:
    backlog = Backlog()
    for second in (0, 1, 2, 20, 21):
        arrived(backlog, f"{second}")
        backlog.on_generated(f"{second}", 50, float(second))
    assert backlog.service_per_s(22.0) == 200.0


def test_a_token_is_served_once() -> None:
    backlog = Backlog()
    arrived(backlog, "r")
    for tokens in (1, 2, 2, 1, 5):
        backlog.on_generated("r", tokens, 0.5)
    assert backlog.service_per_s(0.5) == 100 + 2 * 5


def test_a_request_without_output_teaches_nothing() -> None:
    """An embeddings request has no output tokens, and may have none."""
    backlog = Backlog()
    arrived(backlog, "embeddings", most=0)
    backlog.on_left("embeddings", whole=True)
    assert backlog.used == 1.0
